"""What is picked, beside what sorting all and counting one by one would pick."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from semblend_core import Plan, Span
from semblend_core.recompute import Reuse
from semblend_core.recompute.picking import best, first_of_spans

VALUES = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=80)
"""Few different ones: there are ties everywhere."""


@given(VALUES, st.integers(0, 80), st.integers(2, 9))
def test_the_best_blocks_are_those_that_a_sort_of_all_puts_first(
    scored: list[tuple[int, bool]], count: int, block: int
) -> None:
    values = np.array([value for value, _ in scored], np.float32)
    available = np.array([each for _, each in scored], np.bool_)
    blocks = [range(start, min(start + block, values.size)) for start in range(0, values.size, block)]
    blocks_of = [[at for at in each if available[at]] for each in blocks]
    ranked = sorted(filter(None, blocks_of), key=lambda each: -sum(map(float, values[each])) / len(each))
    wanted: list[int] = []
    for each in ranked:
        if len(wanted) + len(each) > count:
            break
        wanted += each
    assert np.flatnonzero(best(values, available, count, block)).tolist() == sorted(wanted)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), min_size=1, max_size=6),
    st.integers(0, 40),
    st.integers(0, 150),
)
def test_all_spans_get_equally_many_and_the_first_ones_what_is_left(
    gaps_and_lengths: list[tuple[int, int]], heads: int, tokens: int
) -> None:
    position, spans = 0, []
    for number, (gap, length) in enumerate(gaps_and_lengths):
        spans.append(Span(position + gap, f"d{number}", 5, length))
        position = spans[-1].target_end
    reuse = Reuse(Plan.over("r", position + 7, 0, spans))
    wanted = {span.target_start: min(heads, span.length) for span in spans}
    given_to = dict.fromkeys(wanted, 0)
    for _ in range(tokens):
        hungry = [start for start in wanted if given_to[start] < wanted[start]]
        if hungry:
            given_to[min(hungry, key=lambda start: (given_to[start], start))] += 1
    picked = np.flatnonzero(first_of_spans(reuse, reuse.heads(heads), tokens)).tolist()
    assert picked == [at for start, count in given_to.items() for at in range(start, start + count)]
