"""The self-test that needs no forward of its own: prompts that the engine serves show whether its KV can be moved."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy.typing as npt
from torch import Tensor

from semblend_core.contract import SelfTestResult, SelfTestState
from semblend_core.kv.agreement_of_layers import AgreementOfLayers
from semblend_core.kv.deeper_layers import Likeness
from semblend_core.kv.equal_tokens import Agreement, EqualTokens
from semblend_core.kv.rotation import Rotation
from semblend_core.kv.second_rounding import SecondRounding

PROMPTS_FOR_NO = 3
"""One prompt may be odd; so many that disagree are not."""
PROMPTS_FOR_YES_AFTER_ALL = 3
"""In a row that reach as far, once some prompt has disagreed."""
PROMPTS_FOR_YES_IN_DOUBT = 16
"""In a row that reach less far, while too few have disagreed for a no: one odd prompt must not stop all others."""
AS_FAR = 0.8
"""Of the reach of a prompt that disagreed: what comes so near to it shows the same. Equal lengths reach differently."""
PROMPTS_BETWEEN_RETRIES = 16
"""After a no that is not plain, one in so many is looked at."""
LONGER = 4.0
"""After a yes, a prompt is looked at that reaches so many times as far: slow frequencies show over long distances."""


class RotationProof:
    """Proves that K is stored behind the rotary embedding that we turn it with, and that the pool is read right;
    where KV is fp8, also that it keeps enough of the keys for them to be moved.

    One prompt that agrees is a yes. A no takes several, and is final where each of them is plain. Otherwise it is
    tried again from time to time. How far a prompt reaches decides what it can show: doubts about long distances are
    dispelled only by prompts that reach as far. For one thread: the engine's.
    """

    def __init__(self, rotation: Rotation, *of_deeper_layers: Rotation) -> None:
        """``rotation``: of layer 0; then those of the others, where they are not the same."""
        self.rotations = (rotation, *of_deeper_layers)
        """By layer, or one for all."""
        first_of = {id(rotation): 0}
        for layer, other in enumerate(of_deeper_layers, 1):
            first_of.setdefault(id(other), layer)
        self.deeper = {layer: of_deeper_layers[layer - 1] for layer in first_of.values() if layer}
        """The first layer of every other kind, which must be read too."""
        self.result = SelfTestResult(SelfTestState.PENDING, final=False)
        self._disagreed = self._plain_in_a_row = 0
        self._far_in_a_row = self._near_in_a_row = 0
        """Prompts that agreed, reaching as far as one that did not, and less far."""
        self._proved_reach = self._doubted_reach = 0.0
        self._passed_over = 0

    def pairs_wanted(self, token_ids: npt.ArrayLike) -> EqualTokens | None:
        """Where KV of layer 0 must be read to judge it by this prompt; None where there is no need, or no way."""
        if self.result.failed and (self.result.final or self._rests()):
            return None
        needed = self._reach_wanted()
        if len(token_ids) < needed:  # type: ignore[arg-type]
            return None
        pairs = EqualTokens.of(token_ids)
        return None if pairs is None or pairs.reach < needed else pairs

    def _reach_wanted(self) -> float:
        if self.result.failed:
            return AS_FAR * self._doubted_reach
        if not self.result.passed:
            return 0.0
        longer = LONGER * self._proved_reach
        return min(longer, AS_FAR * self._doubted_reach) if self._disagreed else longer

    def judge(
        self,
        pairs: EqualTokens,
        keys: tuple[Tensor, Tensor],
        values: tuple[Tensor, Tensor] | None,
        deeper: Mapping[int, tuple[Tensor, Tensor]] = MappingProxyType({}),
        all_layers: Tensor | None = None,
    ) -> SelfTestResult | None:
        """What is known now, where this prompt has changed it.

        ``keys``, ``values``: [pairs, kv_heads, dim] of layer 0 on the CPU, in the pool's type, at the first places of
        ``pairs`` and at the later ones. ``values`` is None where the engine keeps none. ``deeper``: keys of the layers
        in ``self.deeper``, in the same way. ``all_layers``: [layers, pairs, kv_heads, dim] keys at the first places, as
        stored: of fp8 alone they are looked at. Without them layer 0 speaks for all.
        """
        likenesses = tuple(Likeness.of(layer, pairs, deeper[layer], turn) for layer, turn in self.deeper.items())
        first = Agreement.between(pairs, keys, values, self.rotations[0])
        rounding = self._rounding(pairs, keys[0][None] if all_layers is None else all_layers)
        seen = AgreementOfLayers(first, likenesses, rounding)
        if seen.agrees and not seen.shows_turning:
            return None  # So would K that never turns.
        new = self._after_agreement(seen) if seen.agrees else self._after_disagreement(seen)
        if new is None or (new.state, new.final) == (self.result.state, self.result.final):
            return None
        self.result = new
        return new

    def _rounding(self, pairs: EqualTokens, keys: Tensor) -> SecondRounding | None:
        known = self.rotations
        return SecondRounding.of(keys, pairs.first, known[: len(keys)] if len(known) > 1 else known * len(keys))

    def _rests(self) -> bool:
        self._passed_over += 1
        return self._passed_over % PROMPTS_BETWEEN_RETRIES != 0

    def _after_agreement(self, seen: AgreementOfLayers) -> SelfTestResult | None:
        self._plain_in_a_row = 0
        if seen.reach < AS_FAR * self._doubted_reach:
            self._near_in_a_row += 1
            # It says nothing about the distances that are in doubt: those are looked at when a prompt reaches them.
            enough = self._near_in_a_row >= PROMPTS_FOR_YES_IN_DOUBT and not self.result.failed
        else:
            self._far_in_a_row += 1
            enough = not self._disagreed or self._far_in_a_row >= PROMPTS_FOR_YES_AFTER_ALL
            if enough:
                self._disagreed, self._doubted_reach = 0, 0.0
        if not enough:
            return None
        self._proved_reach = max(self._proved_reach, seen.reach)
        return SelfTestResult(SelfTestState.PASSED, seen.describe(), final=False)

    def _after_disagreement(self, seen: AgreementOfLayers) -> SelfTestResult | None:
        self._far_in_a_row = self._near_in_a_row = 0
        self._disagreed += 1
        self._plain_in_a_row = self._plain_in_a_row + 1 if seen.plainly_disagrees else 0
        self._doubted_reach = max(self._doubted_reach, seen.reach)
        if self._disagreed < PROMPTS_FOR_NO:
            return None
        plain = self._plain_in_a_row >= PROMPTS_FOR_NO
        prompts = f"{self._disagreed} prompts disagree, the last: "
        return SelfTestResult(SelfTestState.FAILED, prompts + seen.describe(), final=plain)
