"""What is asked of an engine's exact tree and allocator, and what a request of such an engine has besides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from semblend_core.contract import TokenIds
from semblend_core.kv.fetching import RequestFetch
from semblend_core.serving.life import RequestLife
from semblend_core.serving.lineage import Lineage
from semblend_core.serving.tree.in_place import InPlace
from semblend_core.serving.tree.shadow import ShadowNode


@dataclass(frozen=True, slots=True)
class TreeMatch:
    """How much of some tokens the exact tree holds on the device now. Valid until the tree changes or while locked."""

    length: int
    node: Any
    read_slots: Callable[[], Tensor]
    """Int64 slots of the matched tokens, on the device."""


class ExactTree(Protocol):
    page_size: int

    def tokens_of(self, token_ids: TokenIds) -> Sequence[int]:
        """Tokens as ``find`` wants them."""

    def find(self, tokens: Sequence[int], key: Any) -> TreeMatch:
        """The longest cached prefix of ``tokens`` under ``key``. Counts as a use of it."""

    def hold(self, node: Any) -> Any:
        """Keep the path to ``node`` from eviction; give what comes back to ``let_go``."""

    def let_go(self, held: Any) -> None:
        """The opposite."""

    def allocate(self, tokens: int) -> Tensor | None:
        """Slots that nobody else has, whole pages, evicting what is not held; None where there is no room."""

    def free(self, slots: Tensor) -> None:
        """The opposite."""


@dataclass(eq=False)
class TreeLife(RequestLife):
    key: Any = field(kw_only=True)
    """Under which name the exact tree keeps the request, besides its tokens."""
    fetch: RequestFetch = field(default_factory=RequestFetch)
    """What is fetched from disk for its claim. Nobody else holds it, so it goes when it is not wanted any more."""
    first_span: int = 0
    """Where its claim's plan leaves what is exact. Beginnings of spans that are computed afresh count as left too."""
    in_place: InPlace | None = None
    """What it goes on from, behind its exact prefix. A claim begins behind it."""
    sought: tuple[int, int] | None = None
    """Generation of lineages and exact prefix when that was last looked for."""
    held: dict[Lineage, ShadowNode] = field(default_factory=dict)
    """What is kept from eviction for it."""
    lineage: Lineage | None = None
    """What grows from its own relocated KV."""
    waited_for_same: int = 0
    """Rounds in which another request was about to leave what it wanted to load."""
