"""What SemBlend asks of SGLang's exact tree and allocator; each supported version answers in its own way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from semblend_sglang.scheduler.requests import TreeKey


@dataclass(frozen=True, slots=True)
class TreeMatch:
    """How much of some tokens the exact tree holds on the device now. Valid until the tree changes or while locked."""

    length: int
    node: Any
    read_slots: Callable[[], Tensor]
    """Int64 slots of the matched tokens, on the device."""


class ExactTree(Protocol):
    page_size: int

    def find(self, tokens: Any, key: TreeKey) -> TreeMatch:
        """The longest cached prefix of ``tokens``. Counts as a use of it."""

    def hold(self, node: Any) -> Any:
        """Keep the path to ``node`` from eviction; give what comes back to ``let_go``."""

    def let_go(self, held: Any) -> None:
        """The opposite."""

    def allocate(self, tokens: int) -> Tensor | None:
        """Slots that nobody else has, whole pages, evicting what is not held; None where there is no room."""

    def free(self, slots: Tensor) -> None:
        """The opposite."""
