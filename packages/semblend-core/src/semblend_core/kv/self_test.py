"""The per-model self-test: does this engine, with this model, move and compute KV correctly? If not, discovery only.

Every adapter runs it at start, through its own way of moving KV. It needs no reference beside the engine itself: K of
layer 0 depends on token and position alone, which proves the model's rotation and with it the moved K of every layer;
a prompt computed in full must give the cold logits, and what is put in place must be what is read back.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from semblend_core.contract import Plan, TokenIds
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.rotation import Rotation
from semblend_core.kv.self_test_cache import SelfTestCache
from semblend_core.kv.self_test_prompts import IN_PLACE, MOVED, SelfTestPrompts
from semblend_core.kv.self_test_report import SelfTestCheck, SelfTestIdentity, SelfTestReport

__all__ = [
    "SelfTestCache",
    "SelfTestCheck",
    "SelfTestIdentity",
    "SelfTestReport",
    "SelfTestSubject",
    "run_self_test",
]

logger = logging.getLogger(__name__)

SHIFTS = (1, 13, 128, -29)
LARGE_SHIFT = 4096
"""Or as far as the engine's context goes."""

# Relative error of K. Moved K is rounded to the storage type once more than computed K, and engines that compute in a
# short type also round cos and sin to it: about three roundings of half a unit in the last place each.
_KEY_TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
_KEY_TOLERANCE_OF_SHORTER_TYPES = 0.15
# Models compute the angle position * frequency in float32, so their own K is off by up to this much per position.
_ANGLE_ROUNDING = 2.0**-24
# Largest difference of two logits, against the largest logit (or 1). Sums are taken in another order.
_LOGIT_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_LOGIT_TOLERANCE_OF_SHORTER_TYPES = 0.1


class SelfTestSubject(Protocol):
    """What an adapter implements over its engine. Every call may raise: that is a failed check."""

    @property
    def identity(self) -> SelfTestIdentity: ...

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""

    @property
    def max_tokens(self) -> int:
        """Longest prompt the engine takes."""

    @property
    def span_alignment(self) -> int:
        """Targets of spans start and end at multiples of this; 1 where single tokens can be placed."""

    @property
    def rotation(self) -> Rotation:
        """The model's, for stored keys of all layers. It need not be what the engine moves keys with."""

    def prefill(self, token_ids: TokenIds) -> tuple[DonorKv, Tensor]:
        """Compute the prompt with no reuse of any kind: the KV of all its tokens, and the last token's logits."""

    def prefill_with(self, token_ids: TokenIds, plan: Plan, donors: Mapping[str, DonorKv]) -> tuple[DonorKv, Tensor]:
        """Carry out ``plan`` as the adapter does in service, with ``donors`` as what its store returned."""


def run_self_test(
    subject: SelfTestSubject, cache: SelfTestCache | None = None, *, force: bool = False
) -> SelfTestReport:
    """Test ``subject``, or return what ``cache`` knows of it, success or failure, unless ``force``. Never raises.

    A failure is logged as an error at every start. The cache keeps findings only: where a check could not be carried
    out, as for want of memory, the next start tests again.
    """
    started = time.perf_counter()
    try:
        identity = subject.identity
        known = None if cache is None or force else cache.load(identity)
        if known is not None:
            _log_failure(known, "found at an earlier start, run_self_test(..., force=True) tests again")
            return known
        prompts = SelfTestPrompts(subject.vocabulary, subject.max_tokens, subject.span_alignment)
    except Exception as error:
        report = SelfTestReport(None, (_not_carried_out("setup", error),), time.perf_counter() - started)
        _log_failure(report, "found now")
        return report
    with torch.no_grad():
        checks = tuple(_Run(subject, prompts).checks())
    report = SelfTestReport(identity, checks, time.perf_counter() - started)
    _log_failure(report, "found now")
    if cache is not None:
        cache.store(report)
    return report


class _Run:
    """One run of all checks. What several checks need is computed once."""

    def __init__(self, subject: SelfTestSubject, prompts: SelfTestPrompts) -> None:
        self._subject = subject
        self._prompts = prompts
        self._cold: dict[bytes, tuple[DonorKv, Tensor]] = {}

    def checks(self) -> Iterator[SelfTestCheck]:
        yield self._check("in_place_round_trip", self._in_place_round_trip)
        yield self._check("moved_round_trip", self._moved_round_trip)
        for shift in SHIFTS:
            yield self._check(f"relocated_keys, shift {shift}", partial(self._relocated_keys, shift))
            yield self._check(f"relocated_layers, shift {shift}", partial(self._relocated_layers, shift))
        far = self._prompts.large_shift(LARGE_SHIFT)
        yield self._check(f"relocated_keys, shift {far}", partial(self._relocated_keys_far, far))
        yield self._check(f"relocated_layers, shift {far}", partial(self._relocated_layers_far, far))
        yield self._check("relocated_values", self._relocated_values)
        yield self._check("sparse_rows", self._sparse_rows)
        yield self._check("full_recompute_logits", lambda: self._full_recompute()[0])
        yield self._check("full_recompute_kv", lambda: self._full_recompute()[1])
        yield self._check("in_place_logits", self._in_place_logits)

    @staticmethod
    def _check(name: str, measure: Callable[[], tuple[float, float, str]]) -> SelfTestCheck:
        try:
            measured, tolerance, detail = measure()
        except Exception as error:
            return _not_carried_out(name, error)
        if not math.isfinite(measured):
            return SelfTestCheck(name, None, tolerance, False, f"the error is {measured} ({detail})")
        return SelfTestCheck(name, measured, tolerance, measured <= tolerance, detail)

    # The checks: error, tolerance, what was compared.

    def _in_place_round_trip(self) -> tuple[float, float, str]:
        tokens, plan = self._prompts.in_place()
        donor, _ = self._prefill(tokens)
        kv, _ = self._prefill_with(tokens, plan, {IN_PLACE: donor})
        kept = slice(0, plan.spans[0].length)
        return _largest_difference(kv, donor, kept, kept), 0.0, "K and V placed without a move and read back, all bits"

    def _moved_round_trip(self) -> tuple[float, float, str]:
        passage = self._prompts.moved(self._prompts.alignment * 37)
        donor, _ = self._prefill(passage.donor_tokens)
        there, _ = self._prefill_with(passage.tokens, passage.plan, {MOVED: donor})
        back, _ = self._prefill_with(passage.donor_tokens, passage.plan_back, {MOVED: there})
        at = passage.in_donor
        error = _relative(back.keys[:, at], donor.keys[:, at])
        return error, 2 * _key_tolerance(donor, 0), "K of all layers moved and moved back, relative"

    def _relocated_keys(self, shift: int) -> tuple[float, float, str]:
        passage = self._prompts.moved(shift)
        donor, _ = self._prefill(passage.donor_tokens)
        cold, _ = self._prefill(passage.tokens)
        kv, _ = self._prefill_with(passage.tokens, passage.plan, {MOVED: donor})
        at = passage.in_target
        error = _relative(kv.keys[0, at], cold.keys[0, at])
        return error, _key_tolerance(donor, at.stop), "K of layer 0 after the move against K computed there, relative"

    def _relocated_keys_far(self, shift: int) -> tuple[float, float, str]:
        tokens, placed, computed, donor_tokens, at = self._prompts.repeated(shift)
        donor, _ = self._prefill(donor_tokens)
        moved, _ = self._prefill_with(tokens, placed, {MOVED: donor})
        fresh, _ = self._prefill_with(tokens, computed, {MOVED: donor})
        error = _relative(moved.keys[0, at], fresh.keys[0, at])
        return (
            error,
            _key_tolerance(donor, at.stop),
            "K of layer 0 after the move against a row computed there, relative",
        )

    def _relocated_layers(self, shift: int) -> tuple[float, float, str]:
        passage = self._prompts.moved(shift)
        donor, _ = self._prefill(passage.donor_tokens)
        kv, _ = self._prefill_with(passage.tokens, passage.plan, {MOVED: donor})
        return self._against_turned(kv, passage.in_target, donor, passage.in_donor)

    def _relocated_layers_far(self, shift: int) -> tuple[float, float, str]:
        tokens, placed, _, donor_tokens, at = self._prompts.repeated(shift)
        donor, _ = self._prefill(donor_tokens)
        kv, _ = self._prefill_with(tokens, placed, {MOVED: donor})
        return self._against_turned(kv, at, donor, slice(0, at.stop - at.start))

    def _against_turned(self, kv: DonorKv, at: slice, donor: DonorKv, source: slice) -> tuple[float, float, str]:
        """Layer 0 is compared too: there the move is also compared with computed K, which proves the rotation."""
        turned = self._subject.rotation.rotate(donor.keys[:, source].float(), at.start - source.start)
        error = _worst(*(_relative(*pair) for pair in zip(kv.keys[:, at], turned, strict=True)))
        return error, _key_tolerance(donor, at.stop), "K after the move against the donor's K turned, worst layer"

    def _relocated_values(self) -> tuple[float, float, str]:
        passage = self._prompts.moved(SHIFTS[1])
        donor, _ = self._prefill(passage.donor_tokens)
        kv, _ = self._prefill_with(passage.tokens, passage.plan, {MOVED: donor})
        if kv.values is None or donor.values is None:
            return 0.0, 0.0, "the KV has no separate V"
        error = float((kv.values[:, passage.in_target].float() - donor.values[:, passage.in_donor].float()).abs().max())
        return error, 0.0, "V of all layers after the move against the donor's, all bits"

    def _sparse_rows(self) -> tuple[float, float, str]:
        """KV that did not move is exact, so rows computed here and there in it must come out as they were."""
        tokens, plan = self._prompts.in_place(every=5)
        donor, _ = self._prefill(tokens)
        kv, _ = self._prefill_with(tokens, plan, {IN_PLACE: donor})
        error = _relative_kv(kv, donor)
        return error, 10 * _key_tolerance(donor, 0), "K and V of all layers, every fifth token computed, relative"

    def _full_recompute(self) -> tuple[tuple[float, float, str], tuple[float, float, str]]:
        passage = self._prompts.moved(SHIFTS[1])
        cold, logits = self._prefill(passage.tokens)
        donor, _ = self._prefill(passage.donor_tokens)
        # A donor that is plainly wrong: a row that was not computed, or a look at KV that a row replaced, shows.
        wrong = DonorKv(-donor.keys, None if donor.values is None else -donor.values)
        kv, again = self._prefill_with(passage.tokens, passage.plan_of_rows, {MOVED: wrong})
        return (
            (*_logit_error(again, logits, cold), "last logits, every token computed, against cold"),
            (
                _relative_kv(kv, cold),
                10 * _key_tolerance(cold, 0),
                "K and V of all layers, every token computed, against cold, relative",
            ),
        )

    def _in_place_logits(self) -> tuple[float, float, str]:
        tokens, plan = self._prompts.in_place()
        donor, logits = self._prefill(tokens)
        _, again = self._prefill_with(tokens, plan, {IN_PLACE: donor})
        return *_logit_error(again, logits, donor), "last logits, all but the last token reused in place, against cold"

    # The engine.

    def _prefill(self, tokens: TokenIds) -> tuple[DonorKv, Tensor]:
        key = tokens.tobytes()
        if key not in self._cold:
            self._cold[key] = _whole(self._subject.prefill(tokens), tokens)
        return self._cold[key]

    def _prefill_with(self, tokens: TokenIds, plan: Plan, donors: Mapping[str, DonorKv]) -> tuple[DonorKv, Tensor]:
        return _whole(self._subject.prefill_with(tokens, plan, donors), tokens)


def _whole(answer: tuple[DonorKv, Tensor], tokens: TokenIds) -> tuple[DonorKv, Tensor]:
    kv, _ = answer
    if kv.first_position != 0 or kv.tokens != tokens.size:
        raise ValueError(f"a prompt of {tokens.size} tokens came back with the KV of {kv.tokens}")
    return answer


def _log_failure(report: SelfTestReport, when: str) -> None:
    if report.reason is not None:
        logger.error("%s: SemBlend finds but does not load (%s; %s)", report.reason, when, report.identity)


def _not_carried_out(name: str, error: Exception) -> SelfTestCheck:
    logger.error("self-test check %r could not be carried out", name, exc_info=error)
    return SelfTestCheck(name, None, 0.0, False, f"{type(error).__name__}: {error}")


def _largest_difference(one: DonorKv, other: DonorKv, at_one: slice, at_other: slice) -> float:
    largest = float((one.keys[:, at_one].float() - other.keys[:, at_other].float()).abs().max())
    if one.values is None or other.values is None:
        return largest
    return _worst(largest, float((one.values[:, at_one].float() - other.values[:, at_other].float()).abs().max()))


def _relative(measured: Tensor, expected: Tensor) -> float:
    measured, expected = measured.float(), expected.float()
    return float((measured - expected).norm() / expected.norm())


def _relative_kv(measured: DonorKv, expected: DonorKv) -> float:
    error = _relative(measured.keys, expected.keys)
    if measured.values is None or expected.values is None:
        return error
    return _worst(error, _relative(measured.values, expected.values))


def _worst(*errors: float) -> float:
    return float(np.max(errors))  # Python's max may pass over what is not a number.


def _key_tolerance(kv: DonorKv, position: int) -> float:
    tolerance = _KEY_TOLERANCE.get(kv.keys.dtype, _KEY_TOLERANCE_OF_SHORTER_TYPES)
    return tolerance + _ANGLE_ROUNDING * position


def _logit_error(logits: Tensor, cold: Tensor, kv: DonorKv) -> tuple[float, float]:
    scale = max(1.0, float(cold.float().abs().max()))
    error = float((logits.float() - cold.float()).abs().max()) / scale
    return error, _LOGIT_TOLERANCE.get(kv.keys.dtype, _LOGIT_TOLERANCE_OF_SHORTER_TYPES)
