"""What a request goes on from: KV behind its exact prefix that others have computed, where it lies."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from semblend_core.serving.lineage import Lineage
from semblend_core.serving.tree.shadow import ShadowNode


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run of a prompt that one lineage holds."""

    lineage: Lineage
    end: int
    """In the prompt."""
    node: ShadowNode


@dataclass(frozen=True, slots=True)
class InPlace:
    """What a prompt finds behind its exact prefix. Good as long as its nodes are there, or while they are held."""

    start: int
    """The exact prefix."""
    stretches: tuple[Stretch, ...]
    """In their order: each begins where the one before ends."""
    slots: Tensor
    """From ``start`` on."""

    @property
    def end(self) -> int:
        return self.stretches[-1].end

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def lineage(self) -> Lineage:
        """Of what is computed behind it."""
        return self.stretches[-1].lineage
