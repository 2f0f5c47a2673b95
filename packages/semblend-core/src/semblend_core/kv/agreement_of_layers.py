"""What one prompt says about all layers that were read of it."""

from __future__ import annotations

from dataclasses import dataclass

from semblend_core.kv.deeper_layers import Likeness
from semblend_core.kv.equal_tokens import Agreement
from semblend_core.kv.second_rounding import SecondRounding


@dataclass(frozen=True, slots=True, eq=False)
class AgreementOfLayers:
    """Of layer 0, of the first layer of each other kind, and where KV is fp8 of the layer that loses most by it."""

    first: Agreement
    others: tuple[Likeness, ...] = ()
    rounding: SecondRounding | None = None

    @property
    def reach(self) -> float:
        return self.first.reach

    @property
    def shows_turning(self) -> bool:
        return self.first.shows_turning

    @property
    def agrees(self) -> bool:
        return self.first.agrees and self._too_coarse is None and all(other.agrees for other in self.others)

    @property
    def plainly_disagrees(self) -> bool:
        """A likeness that is not there may be a prompt's own. How coarse a type is for a model's keys is not."""
        return self.first.plainly_disagrees or self._too_coarse is not None

    @property
    def _too_coarse(self) -> SecondRounding | None:
        return None if self.rounding is None or self.rounding.agrees else self.rounding

    def describe(self) -> str:
        """The figures, or those of what disagrees first."""
        if not self.first.agrees:
            return self.first.describe()
        if self._too_coarse is not None:
            return self._too_coarse.describe()
        wrong = [other for other in self.others if not other.agrees]
        if wrong:
            return wrong[0].describe()
        told = [self.first.describe(), *(other.describe() for other in self.others)]
        return "; ".join(told if self.rounding is None else [*told, self.rounding.describe()])
