"""From runs to a plan, or to the reason for none."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from semblend_core.contract import DeclineReason, LookupRequest, Plan, Span
from semblend_core.discovery import ISLAND_GRAM, MOST_PIECES, FoundRuns, Run, best_cover
from semblend_core.donors import DonorRecord, DonorRegistry
from semblend_core.planning.cost import CostModel
from semblend_core.recompute import choose_policy
from semblend_core.recompute.reuse import from_one_place
from semblend_core.settings import Settings

ISLAND_DONORS = 4
"""Donors searched for what is left between edits; each costs about as much as the first search."""
ISLAND_REACH = 256
"""How far before and after a donor's known part of the prompt more of it is looked for."""


class Planner:
    def __init__(self, settings: Settings, registry: DonorRegistry, cost: CostModel | None = None) -> None:
        self._settings = settings
        self._registry = registry
        self.cost = cost if cost is not None else CostModel.from_settings(settings)

    def choose_runs(self, request: LookupRequest, runs: FoundRuns, deadline: float | None = None) -> list[Run]:
        """The cover of the prompt behind its exact prefix, each piece from the donor that read most alike before it.

        ``deadline``: no donor is searched after it (``time.perf_counter``).
        """
        cover = self._longest_cover(request, runs, deadline)
        # One document with edits needs few rows, and the strict tier takes no other: it stays in one donor.
        one_place = _one_place(cover)
        if one_place and len(cover) > MOST_PIECES:
            return cover
        alike = self._registry.most_alike(request.namespace.digest, request.token_ids, cover, runs, deadline)
        return cover if one_place and not _one_place(alike) else alike

    def _longest_cover(self, request: LookupRequest, runs: list[Run], deadline: float | None) -> list[Run]:
        """With fuzzy chunks on, islands between edits included."""
        min_span = self._settings.min_span_tokens
        if not self._settings.fuzzy_chunks:
            return self._cover(request, runs, min_span)
        # A short run is only trusted in a donor that shares much more than that run with the prompt.
        trusted = _sharing(runs, at_least=min_span)
        candidates = [run for run in runs if run.length >= min_span or run.donor in trusted]
        cover = self._cover(request, candidates, ISLAND_GRAM)
        for serial in _donors_to_search(cover):
            wanted = _gaps_to_search(request, cover, serial)
            if deadline is not None and time.perf_counter() > deadline:
                break
            if wanted.size:
                within = _donor_range(cover, serial)
                candidates += self._registry.islands(request.token_ids, wanted, serial, ISLAND_GRAM, within)
                cover = self._cover(request, candidates, ISLAND_GRAM)
        return cover

    def plan(self, request: LookupRequest, chosen: list[Run], donors: Sequence[DonorRecord]) -> Plan | DeclineReason:
        """The plan over ``chosen`` if it passes every gate. ``donors`` are the pinned records of the runs."""
        if not chosen:
            return DeclineReason.NO_SPANS
        names = {record.serial: record.donor_id for record in donors}
        plan = Plan.over(
            request.request_id,
            int(request.token_ids.size),
            request.exact_prefix_tokens,
            [Span(run.start, names[run.donor], run.donor_start, run.length) for run in chosen],
        )
        return self._refuse(plan) or plan

    def _refuse(self, plan: Plan) -> DeclineReason | None:
        settings = self._settings
        if plan.reused_tokens < settings.min_saved_tokens:
            return DeclineReason.TOO_FEW_TOKENS_SAVED
        if plan.reused_tokens < settings.min_reuse_ratio * (plan.prompt_tokens - plan.exact_prefix_tokens):
            return DeclineReason.REUSE_RATIO_TOO_LOW
        if settings.quality_tier == "strict" and choose_policy("strict", plan) is None:
            return DeclineReason.QUALITY_TIER
        if settings.cost_gate and self.cost is not None and self.cost.gain_us(plan) <= settings.min_gain_us:
            return DeclineReason.DOES_NOT_PAY
        return None

    def _cover(self, request: LookupRequest, runs: list[Run], min_span: int) -> list[Run]:
        return best_cover(
            runs,
            min_span=min_span,
            worth=min(min_span, ISLAND_GRAM),
            preference=self._registry.preference,
            start=request.exact_prefix_tokens,
            alignment=request.span_alignment,
            max_spans=self._settings.max_spans,
        )


def _one_place(cover: list[Run]) -> bool:
    if len({run.donor for run in cover}) > 1:
        return False
    return from_one_place([Span(run.start, "the one", run.donor_start, run.length) for run in cover])


def _sharing(runs: list[Run], at_least: int) -> set[int]:
    """Donors that share at least so many tokens with the prompt, all runs together."""
    shared: dict[int, int] = {}
    for run in runs:
        shared[run.donor] = shared.get(run.donor, 0) + run.length
    return {serial for serial, tokens in shared.items() if tokens >= at_least}


def _donors_to_search(cover: list[Run]) -> list[int]:
    """Donors of the cover, those with most of it first."""
    covered: dict[int, int] = {}
    for run in cover:
        covered[run.donor] = covered.get(run.donor, 0) + run.length
    return sorted(covered, key=lambda serial: -covered[serial])[:ISLAND_DONORS]


def _donor_range(cover: list[Run], serial: int) -> range | None:
    """The donor's positions around those it already gave; None, all of them, where it gave none."""
    own = [run for run in cover if run.donor == serial]
    if not own:
        return None
    low = min(run.donor_start for run in own)
    high = max(run.donor_start + run.length for run in own)
    return range(max(0, low - ISLAND_REACH), high + ISLAND_REACH)


def _gaps_to_search(request: LookupRequest, cover: list[Run], serial: int) -> npt.NDArray[np.int64]:
    """Positions at which one donor may hold an island: gaps in and around its part of the cover that have room for one.

    A donor with a single piece was not edited there; one that lost its pieces to others may hold anything anywhere.
    """
    prompt = int(request.token_ids.size)
    own = [run for run in cover if run.donor == serial]
    if len(own) == 1:
        return np.empty(0, np.int64)
    low = max(request.exact_prefix_tokens, own[0].start - ISLAND_REACH if own else 0)
    high = min(prompt, own[-1].end + ISLAND_REACH if own else prompt)
    gaps: list[npt.NDArray[np.int64]] = []
    position = low
    for start, end in [*((run.start, run.end) for run in cover), (high, high)]:
        if position < high and start - position >= ISLAND_GRAM:
            gaps.append(np.arange(position, min(start, high) - ISLAND_GRAM + 1))
        position = max(position, end)
    return np.concatenate(gaps) if gaps else np.empty(0, np.int64)
