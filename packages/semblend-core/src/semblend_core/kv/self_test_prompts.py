"""The prompts and plans of the self-test: the same token ids on every machine, no text and no tokenizer needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semblend_core.contract import Plan, Row, RowKind, Span, TokenIds, as_token_ids

IN_PLACE = "self-test-in-place"
MOVED = "self-test-moved"
_PASSAGE_TOKENS = 64
_TAIL_TOKENS = 7
_PASSAGE, _DONOR_FRONT, _TARGET_FRONT, _TAIL = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class MovedPassage:
    """One passage behind other tokens in the donor than in the target."""

    donor_tokens: TokenIds
    tokens: TokenIds
    in_donor: slice
    in_target: slice

    @property
    def plan(self) -> Plan:
        """Relocate the passage, compute what is before and behind it."""
        return Plan.over("self-test", self.tokens.size, 0, [self._span])

    @property
    def plan_back(self) -> Plan:
        """The way back: the target's passage into the donor's prompt."""
        back = Span(self.in_donor.start, MOVED, self.in_target.start, self._span.length)
        return Plan.over("self-test", self.donor_tokens.size, 0, [back])

    @property
    def plan_of_rows(self) -> Plan:
        """Relocate the passage, then compute every token all the same."""
        chosen = Row(self.in_target.start, self._span.length, RowKind.CHOSEN)
        return Plan.over("self-test", self.tokens.size, 0, [self._span], [chosen])

    @property
    def _span(self) -> Span:
        start, end = self.in_target.start, self.in_target.stop
        return Span(start, MOVED, self.in_donor.start, end - start)


class SelfTestPrompts:
    """Prompts for an engine with this vocabulary, context and alignment."""

    def __init__(self, vocabulary: int, max_tokens: int, alignment: int = 1) -> None:
        self.alignment = alignment
        self._vocabulary = vocabulary
        self._max_tokens = max_tokens
        self._length = _rounded_up(_PASSAGE_TOKENS, alignment)
        needed = 3 * self._length + 160 + _TAIL_TOKENS
        if max_tokens < needed:
            raise ValueError(f"the self-test needs prompts of {needed} tokens, the engine takes {max_tokens}")

    def in_place(self, every: int | None = None) -> tuple[TokenIds, Plan]:
        """A prompt, and the plan that reuses it from itself but for its end and for one token in ``every``."""
        tokens = self._run(_PASSAGE, self._length + 1)
        rows = [Row(start, 1, RowKind.CHOSEN) for start in range(0, self._length, every)] if every else []
        return tokens, Plan.over("self-test", tokens.size, 0, [Span(0, IN_PLACE, 0, self._length)], rows)

    def moved(self, shift: int) -> MovedPassage:
        """A passage that stands ``shift`` tokens further on in the target; its target position is aligned."""
        target = _rounded_up(max(shift, 0), self.alignment)
        donor = target - shift
        passage, tail = self._run(_PASSAGE, self._length), self._run(_TAIL, _TAIL_TOKENS)
        return MovedPassage(
            _joined(self._run(_DONOR_FRONT, donor), passage, tail),
            _joined(self._run(_TARGET_FRONT, target), passage, tail),
            slice(donor, donor + self._length),
            slice(target, target + self._length),
        )

    def large_shift(self, wanted: int) -> int:
        """The largest shift up to ``wanted`` that is whole passages and leaves the prompt within the context."""
        room = self._max_tokens - self._length - _TAIL_TOKENS
        return min(wanted, room) // self._length * self._length

    def repeated(self, shift: int) -> tuple[TokenIds, Plan, Plan, TokenIds, slice]:
        """One passage over and over, so that a far position costs no long computation.

        The prompt, a plan that relocates every copy, one that computes the last copy at its true positions, the
        donor's prompt, and where the last copy is. Layer 0 does not see that the copies before it are relocated.
        """
        passage, tail = self._run(_PASSAGE, self._length), self._run(_TAIL, _TAIL_TOKENS)
        starts = range(0, shift + 1, self._length)
        tokens = _joined(*[passage] * len(starts), tail)
        spans = [Span(start, MOVED, 0, self._length) for start in starts]
        placed = Plan.over("self-test", tokens.size, 0, spans)
        last = Row(shift, self._length, RowKind.CHOSEN)
        computed = Plan.over("self-test", tokens.size, 0, spans, [last])
        return tokens, placed, computed, _joined(passage, tail), slice(shift, shift + self._length)

    def _run(self, which: int, length: int) -> TokenIds:
        # From the middle half of the vocabulary, since special tokens stand at its ends.
        numbers = (np.arange(length, dtype=np.uint64) + np.uint64(which * 100_003 + 1)) * np.uint64(2_654_435_761)
        first, span = self._vocabulary // 4, max(1, self._vocabulary // 2)
        return as_token_ids((first + (numbers >> np.uint64(8)) % np.uint64(span)).astype(np.int32))


def _joined(*runs: TokenIds) -> TokenIds:
    return as_token_ids(np.concatenate(runs))


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
