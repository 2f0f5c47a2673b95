"""From a plan to what engines understand: a claimed range, what is loaded into it, and the rows that fill the rest.

An engine counts on a claim as on a longer prefix. It takes it in whole pages from the exact prefix on, and computes the
prompt behind it in one piece. Inside the claim, spans and rows may begin and end anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from semblend_core.contract import DeclineReason, Plan, Span, joined_runs
from semblend_core.recompute import MeanShift, Recompute, Scores, choose_policy
from semblend_core.recompute.runs import Runs
from semblend_core.serving.probing import LONGEST_RUN, Probing, probing_of
from semblend_core.settings import QualityTier

Run: TypeAlias = tuple[int, int]
"""[start, end) in the prompt."""
Rows: TypeAlias = tuple[Run, ...]
"""Runs of tokens that are computed, in order and apart."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one request gets in front of what it computes itself."""

    start: int
    """The exact prefix, which is the engine's own."""
    end: int
    """A multiple of the page size. The engine computes the prompt from here on."""
    spans: tuple[Span, ...]
    """Relocated before the forward. Rows inside them are written over by it."""
    rows: Rows
    """What the forward computes inside the claim."""
    correction: MeanShift | None = None
    """How the forward corrects what it does not compute."""
    spending: float = 1.0
    """What it computes, by its tier's own budget."""
    probing: Probing | None = None
    """How other rows are chosen, once a first step has shown where the question looks. ``rows`` stand until then, and
    where that fails."""

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def row_tokens(self) -> int:
        return sum(end - start for start, end in self.rows)

    @property
    def most_row_tokens(self) -> int:
        """The same with whatever rows a probe may choose."""
        if self.probing is None:
            return self.row_tokens
        plan, most_chosen = self.probing.plan, int(self.probing.choice.budget * self.probing.plan.reused_tokens)
        gaps = sum(min(row.end, self.end) - row.start for row in plan.rows if row.start < self.end)
        return max(self.row_tokens, gaps + most_chosen)

    @property
    def reused_tokens(self) -> int:
        """Tokens of the claim that are loaded and not computed."""
        return self.length - self.row_tokens

    @property
    def first_rows(self) -> Rows:
        """What is computed first: of a probe, if there is one."""
        return self.rows if self.probing is None else self.probing.rows

    @property
    def first_row_tokens(self) -> int:
        return sum(end - start for start, end in self.first_rows)

    @property
    def blocks_for(self) -> int:
        """Up to where the first rows reach into the prompt, or the claim."""
        return self.end if self.probing is None else self.probing.plan.prompt_tokens

    @property
    def loaded_spans(self) -> tuple[Span, ...]:
        """What is relocated: for a probe also what the claim does not reach."""
        return self.spans if self.probing is None else self.probing.plan.spans

    @property
    def first_approximate(self) -> int:
        return self.spans[0].target_start

    @property
    def donor_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(span.donor_id for span in self.spans))

    def spans_of(self, donor_id: str) -> list[Span]:
        return [span for span in self.spans if span.donor_id == donor_id]

    def within(self, most_tokens: int, most_rows: int, page_size: int) -> Claim | None:
        """As much of the claim as can be had with so many row tokens and rows in one step. The rest is computed."""
        tokens = 0
        for number, (start, end) in enumerate(self.rows):
            tokens += end - start
            if tokens > most_tokens or number >= most_rows:
                return self._ending_at(start // page_size * page_size)
        return self

    def with_rows(self, most_rows: int) -> Claim:
        """The same claim in fewer rows: those that stand closest become one, and what lies between is computed too."""
        surplus = len(self.rows) - most_rows
        if surplus <= 0:
            return self
        gaps = sorted(range(1, len(self.rows)), key=lambda at: self.rows[at][0] - self.rows[at - 1][1])
        joined = set(gaps[:surplus])
        rows: list[Run] = []
        for at, (start, end) in enumerate(self.rows):
            if at in joined:
                rows[-1] = (rows[-1][0], end)
            else:
                rows.append((start, end))
        return replace(self, rows=tuple(rows))

    def up_to_question(self, page_size: int) -> Claim:
        """With all spans that a probe may look at, for engines that are told of a claim's end before they probe."""
        assert self.probing is not None
        plan = self.probing.plan
        end = plan.computed_tail // page_size * page_size
        spans = tuple(_clipped(span, end) for span in plan.spans if span.target_start < end)
        rows = tuple(joined_runs([*self.rows, (self.end, end)])) if end > self.end else self.rows
        return replace(self, end=end, spans=spans, rows=rows)

    def unprobed(self) -> Claim:
        """The same claim with the rows that it has."""
        return replace(self, probing=None)

    def moved_only(self) -> Claim:
        """The same claim with spans cut to what no row computes, for engines that correct nothing."""
        return replace(self, spans=tuple(piece for span in self.spans for piece in _without(span, self.rows)))

    def _ending_at(self, end: int) -> Claim | None:
        spans = tuple(_clipped(span, end) for span in self.spans if span.target_start < end)
        rows = tuple((row_start, min(row_end, end)) for row_start, row_end in self.rows if row_start < end)
        cut = replace(self, end=end, spans=spans, rows=rows, probing=None)
        return cut if end > self.start and spans and cut.reused_tokens > 0 else None


def take_rows(rows: Rows, most_tokens: int, most_rows: int) -> tuple[Rows, Rows]:
    """The first of ``rows`` that a step with so much room can hold, and the rest. A long row may be cut in two."""
    taken: list[Run] = []
    for at, (start, end) in enumerate(rows):
        if not most_tokens or len(taken) == most_rows:
            return tuple(taken), rows[at:]
        stop = min(end, start + most_tokens)
        taken.append((start, stop))
        most_tokens -= stop - start
        if stop < end:
            return tuple(taken), ((stop, end), *rows[at + 1 :])
    return tuple(taken), ()


def claim_of(plan: Plan, page_size: int, correction: MeanShift | None = None, join_within: int = 0) -> Claim | None:
    """The longest claim that saves anything; None where the plan saves nothing in whole pages.

    ``join_within``: rows with at most so many tokens between them become one.
    """
    # Rows that touch become one: each costs a place in the batch.
    computed = Runs.of_pairs(joined_runs((row.start, row.end) for row in plan.rows))
    end = _end_of(computed, page_size)
    return _claim_of(plan, end, computed.before(end).joined(join_within), correction)


def _claim_of(plan: Plan, end: int, rows: Runs, correction: MeanShift | None) -> Claim | None:
    spans = tuple(_clipped(span, end) for span in plan.spans if span.target_start < end)
    if not spans:
        return None
    claim = Claim(plan.exact_prefix_tokens, end, spans, rows.as_pairs(), correction)
    return claim if claim.reused_tokens > 0 else None


def _end_of(computed: Runs, page_size: int) -> int:
    """Whole pages before the last stretch of computed tokens, which the engine computes in one piece anyway."""
    return int(computed.starts[-1]) // page_size * page_size


def claim_by_tier(
    plan: Plan,
    tier: QualityTier,
    page_size: int,
    *,
    limit: float | None,
    correcting: bool | None,
    join_within: int = 0,
    probe_layers: int | None = None,
    block: int = 1,
    spending: float | None = 1.0,
) -> Claim | DeclineReason:
    """What a quality tier makes of a plan; or why it declines.

    ``correcting``: whether the engine can correct KV inside its forward. None: it never does, and the tier's rows are
    taken without their correction. ``join_within``: rows with at most so many tokens between them become one.
    ``probe_layers``: the model's layers, where the engine can see their attention; None: it cannot, or shall not.
    ``block``: rows that are chosen by a probe are whole blocks of so many tokens. ``spending``: so many times the
    tier's own budget; None: what was compared of this kind did not hold its target.
    """
    if spending is None:
        return DeclineReason.QUALITY_TARGET
    choice = choose_policy(tier, plan, probing=False, limit=limit, spending=spending)
    if choice is None:
        return DeclineReason.QUALITY_TIER
    decided = choice.policy.plan(plan, budget=choice.budget, probe=None, block=1)
    if decided.correction is not None and correcting is False:
        return DeclineReason.QUALITY_TIER
    end = _end_of(decided.computed, page_size)
    rows = decided.computed.before(end).joined(join_within)
    claim = _claim_of(plan, end, rows, decided.correction if correcting else None)
    if claim is None:
        return DeclineReason.TOO_FEW_TOKENS_SAVED
    if probe_layers is None:
        return replace(claim, spending=spending)
    found = probing_of(
        plan,
        tier,
        limit=limit,
        model_layers=probe_layers,
        block=block,
        join_within=join_within,
        spending=spending,
    )
    return replace(claim, spending=spending, probing=found)


def claim_by_scores(claim: Claim, scores: Scores, page_size: int, most_rows: int) -> Claim:
    """The claim with rows where the question looks, by what its probe has shown, in at most so many rows.

    It may end elsewhere. Spans that its plan has behind that end are in place already, and are computed over.
    """
    probing = claim.probing
    assert probing is not None
    plan, most_tokens = probing.plan, claim.most_row_tokens

    def rows_of(computed: Runs) -> Runs | None:
        end = _end_of(computed, page_size)
        if end <= plan.first_approximate_token:
            return None
        longest = end - plan.exact_prefix_tokens - 1  # Or nothing would be reused.
        return _joined(computed.before(end), probing.join_within, most_tokens, longest)

    found, chosen = _in_runs_that_fit(probing, scores, most_rows, rows_of), None
    if found is not None:
        decided, rows = found
        chosen = _claim_of(plan, _end_of(decided.computed, page_size), rows, _correction(claim, decided))
    return replace((chosen or claim.unprobed()).with_rows(most_rows), spending=claim.spending)


def rows_by_scores(claim: Claim, scores: Scores, most_rows: int) -> Claim | None:
    """The same for a claim whose end stands. None: that would compute more than it may."""
    probing, most_tokens = claim.probing, claim.most_row_tokens
    assert probing is not None
    found = _in_runs_that_fit(
        probing,
        scores,
        most_rows,
        lambda computed: _joined(computed.before(claim.end), probing.join_within, most_tokens),
    )
    if found is None:
        return None
    decided, rows = found
    chosen = replace(claim, rows=rows.as_pairs(), correction=_correction(claim, decided), probing=None)
    chosen = chosen.with_rows(most_rows)
    return chosen if len(chosen.rows) <= most_rows and chosen.row_tokens <= most_tokens else None


def _correction(claim: Claim, decided: Recompute) -> MeanShift | None:
    return None if claim.correction is None else decided.correction


def _joined(rows: Runs, within: int, most_tokens: int, longest: int | None = None) -> Runs | None:
    """Rows that are joined over at most ``within`` tokens, or over fewer: what lies between is computed too.

    Rows that a probe chooses lie all over the prompt. Joined without a limit they would be most of it. None: so joined
    they are longer than ``longest``.
    """
    tokens, between = rows.tokens, rows.between
    while True:
        computed = tokens + int(between[between <= within].sum())
        if longest is not None and computed > longest:
            return None
        if within == 0 or computed <= most_tokens:
            return rows.joined(within)
        within //= 2


def _in_runs_that_fit(
    probing: Probing, scores: Scores, most_rows: int, rows_of: Callable[[Runs], Runs | None]
) -> tuple[Recompute, Runs] | None:
    """Where there is room for few rows, longer runs are chosen: as many tokens in fewer rows.

    To join the rows instead would compute all that lies between them. ``rows_of``: of all that is computed; None: that
    is of no use.
    """
    run = probing.block
    while True:
        decided = probing.decide(scores, run)
        rows = rows_of(decided.computed)
        if rows is None:
            return None
        if rows.count <= most_rows or run >= LONGEST_RUN:
            return decided, rows
        run *= 2 ** max(1, round(math.log2(rows.count / max(1, most_rows))))


def _clipped(span: Span, end: int) -> Span:
    return span if span.target_end <= end else replace(span, length=end - span.target_start)


def _without(span: Span, rows: Iterable[Run]) -> list[Span]:
    """The parts of ``span`` that no row computes."""
    pieces, position, limit = [], span.target_start, span.target_end
    for row_start, row_end in (*rows, (limit, limit)):
        if row_end <= position and row_start < limit:
            continue
        stop = min(row_start, limit)
        if stop > position:
            pieces.append(Span(position, span.donor_id, position - span.shift, stop - position))
        position = max(position, row_end)
        if position >= limit:
            break
    return pieces
