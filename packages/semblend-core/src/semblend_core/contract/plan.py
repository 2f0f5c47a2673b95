"""Spans, rows and the plan of one request. All positions and lengths are in tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class InvalidPlanError(ValueError):
    """A span, row or plan that no engine could carry out correctly."""


@dataclass(frozen=True, slots=True)
class Span:
    """A run of recipient tokens equal, token by token, to a run of one donor.

    Owned by the plan that holds it. ``target_start`` and ``target_end`` are multiples of the request's
    ``span_alignment``; ``donor_start`` is never aligned.
    """

    target_start: int
    """First recipient position, in [0, prompt)."""
    donor_id: str
    donor_start: int
    """Position in the donor that holds the same token as ``target_start``."""
    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InvalidPlanError(f"a span needs at least one token, got length {self.length}")
        if self.target_start < 0 or self.donor_start < 0:
            raise InvalidPlanError(f"span positions start at 0, got {self}")
        if not self.donor_id:
            raise InvalidPlanError("a span names its donor: donor_id must not be empty")

    @property
    def target_end(self) -> int:
        """One past the last recipient position."""
        return self.target_start + self.length

    @property
    def donor_end(self) -> int:
        """One past the last donor position."""
        return self.donor_start + self.length

    @property
    def shift(self) -> int:
        """How far K must be rotated: recipient position minus donor position."""
        return self.target_start - self.donor_start


class RowKind(StrEnum):
    GAP = "gap"
    """Tokens that no span covers."""
    SEAM = "seam"
    """First tokens of a span, computed afresh because the donor's attention sinks are in them."""
    CHOSEN = "chosen"
    """Tokens inside a span that a recompute policy picked."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run of recipient tokens that the engine computes in its sparse prefill."""

    start: int
    length: int
    kind: RowKind

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InvalidPlanError(f"a row needs at least one token, got length {self.length}")
        if self.start < 0:
            raise InvalidPlanError(f"row positions start at 0, got {self.start}")

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Plan:
    """What to relocate and what to compute for one request.

    Every position from ``exact_prefix_tokens`` to the end of the prompt is in a span, in a row, or in both
    (then the row wins: the relocated KV is overwritten). The last position is always in a row, since the
    engine needs its logits. Immutable and free of engine objects: it may cross threads and processes.
    """

    request_id: str
    prompt_tokens: int
    exact_prefix_tokens: int
    """Positions the engine's own prefix cache covers; the plan never touches them."""
    spans: tuple[Span, ...]
    """Sorted by ``target_start``, without overlap. At least one."""
    rows: tuple[Row, ...]
    """Sorted by ``start``, without overlap. At least one."""

    def __post_init__(self) -> None:
        if not 0 <= self.exact_prefix_tokens < self.prompt_tokens:
            raise InvalidPlanError(
                f"exact prefix of {self.exact_prefix_tokens} tokens leaves nothing to plan "
                f"in a prompt of {self.prompt_tokens}"
            )
        if not self.spans:
            raise InvalidPlanError("a plan without spans reuses nothing: decline instead")
        if not self.rows:
            raise InvalidPlanError("a plan must leave at least the last prompt token to compute")
        # Plain tuples: a plan is checked on the scheduler's thread and may have hundreds of spans.
        spans = [(span.target_start, span.target_start + span.length) for span in self.spans]
        rows = [(row.start, row.start + row.length) for row in self.rows]
        _check_order("spans", spans, self)
        _check_order("rows", rows, self)
        if self.rows[-1].end != self.prompt_tokens:
            raise InvalidPlanError(
                f"the last prompt token ({self.prompt_tokens - 1}) must be computed: the engine samples from its logits"
            )
        uncovered = _first_uncovered(sorted(spans + rows), self.exact_prefix_tokens, self.prompt_tokens)
        if uncovered is not None:
            raise InvalidPlanError(f"position {uncovered} is in no span and in no row")

    @classmethod
    def over(
        cls,
        request_id: str,
        prompt_tokens: int,
        exact_prefix_tokens: int,
        spans: Iterable[Span],
        recomputed: Iterable[Row] = (),
    ) -> Plan:
        """Build the plan that computes the gaps between ``spans`` plus the ``recomputed`` rows inside them.

        A span that reaches the end of the prompt gets its last token recomputed.
        """
        ordered = tuple(sorted(spans, key=lambda span: span.target_start))
        rows = [*gap_rows(prompt_tokens, exact_prefix_tokens, ordered), *recomputed]
        if not any(row.end == prompt_tokens for row in rows):
            rows.append(Row(prompt_tokens - 1, 1, RowKind.CHOSEN))
        rows.sort(key=lambda row: row.start)
        return cls(request_id, prompt_tokens, exact_prefix_tokens, ordered, tuple(rows))

    def only(self, spans: Iterable[Span]) -> Plan:
        """The same plan with these of its spans. The rest is computed."""
        return Plan.over(self.request_id, self.prompt_tokens, self.exact_prefix_tokens, spans)

    @property
    def computed_tokens(self) -> int:
        """Tokens the engine computes in its prefill."""
        return sum(row.length for row in self.rows)

    @property
    def reused_tokens(self) -> int:
        """Tokens whose relocated KV is used. An intention: only the backend's confirmation counts as reuse."""
        return self.prompt_tokens - self.exact_prefix_tokens - self.computed_tokens

    @property
    def covered_tokens(self) -> int:
        """Tokens that donors hold, computed afresh or not."""
        return sum(span.length for span in self.spans)

    @property
    def computed_tail(self) -> int:
        """Where the unbroken stretch of computed tokens begins that reaches the end of the prompt."""
        begin = self.prompt_tokens
        for row in reversed(self.rows):
            if row.end < begin:
                break
            begin = row.start
        return begin

    @property
    def first_approximate_token(self) -> int:
        """KV from here on is approximate and must never be published under an exact key.

        Rows before the first span are exact, like everything the engine computes behind an exact prefix;
        whatever is computed after a relocated token has attended to it.
        """
        return self.spans[0].target_start

    @property
    def donor_ids(self) -> tuple[str, ...]:
        """Donors in the order in which the prompt first uses them."""
        return tuple(dict.fromkeys(span.donor_id for span in self.spans))


def gap_rows(prompt_tokens: int, exact_prefix_tokens: int, spans: Iterable[Span]) -> tuple[Row, ...]:
    """The rows for positions that neither the exact prefix nor any of the (sorted) ``spans`` covers."""
    rows: list[Row] = []
    position = exact_prefix_tokens
    for span in spans:
        start = span.target_start
        if start > position:
            rows.append(Row(position, start - position, RowKind.GAP))
        position = max(position, start + span.length)
    if position < prompt_tokens:
        rows.append(Row(position, prompt_tokens - position, RowKind.GAP))
    return tuple(rows)


def joined_runs(runs: Iterable[tuple[int, int]], within: int = 0) -> list[tuple[int, int]]:
    """[start, end) of the same positions, in order; runs that touch or overlap become one.

    So do those with at most ``within`` positions between them, which then are in it too.
    """
    joined: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if joined and start <= joined[-1][1] + within:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _first_uncovered(runs: list[tuple[int, int]], position: int, end_of_prompt: int) -> int | None:
    for start, end in runs:
        if start > position:
            return position
        if end > position:
            position = end
    return None if position >= end_of_prompt else position


def _check_order(what: str, runs: list[tuple[int, int]], plan: Plan) -> None:
    exact, prompt = plan.exact_prefix_tokens, plan.prompt_tokens
    previous_end = exact
    for start, end in runs:
        if start < exact:
            raise InvalidPlanError(f"{what} start at {start}, inside the exact prefix of {exact} tokens")
        if start < previous_end:
            raise InvalidPlanError(f"{what} overlap or are out of order at position {start}")
        if end > prompt:
            raise InvalidPlanError(f"{what} reach {end}, beyond the prompt of {prompt} tokens")
        previous_end = end
