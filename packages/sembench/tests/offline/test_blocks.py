"""Block metrics say what their definitions say, block by block."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.offline.blocks import BlockMetrics, TokenIds, collect_blocks, count_exact_prefix, measure_blocks
from sembench.offline.providers import ExactBlockProvider
from semblend_core import DonorOffer, LookupRequest, Namespace, Span

tokens = st.lists(st.integers(0, 2), max_size=60)
block_sizes = st.integers(1, 6)


def ids(values: list[int]) -> TokenIds:
    return np.array(values, np.int32)


@st.composite
def proposals(draw: st.DrawFn) -> tuple[list[int], list[Span]]:
    """A recipient and spans over it that do not overlap, often touching, from few donors at few shifts."""
    recipient = draw(tokens)
    spans: list[Span] = []
    position = 0
    while position < len(recipient):
        position += draw(st.sampled_from([0, 0, 1, 3]))
        length = draw(st.integers(1, 12))
        if position + length > len(recipient):
            break
        shift = draw(st.integers(0, 2))
        spans.append(Span(position, draw(st.sampled_from("ab")), position + shift, length))
        position += length
    return recipient, spans


def metrics_by_definition(recipient: list[int], donors: list[list[int]], spans: list[Span], size: int) -> BlockMetrics:
    known = [donor[at : at + size] for donor in donors for at in range(0, len(donor) - size + 1, size)]
    origin = {
        span.target_start + step: (span.donor_id, span.donor_start + step)
        for span in spans
        for step in range(span.length)
    }
    exact = candidate = eligible = beyond = 0
    for start in range(0, len(recipient) - size + 1, size):
        is_exact = recipient[start : start + size] in known
        places = [origin.get(start + step) for step in range(size)]
        is_candidate = None not in places
        is_eligible = is_candidate and all(
            here is not None and there is not None and there == (here[0], here[1] + 1)
            for here, there in pairwise(places)
        )
        exact += is_exact
        candidate += is_candidate
        eligible += is_eligible
        beyond += is_eligible and not is_exact
    return BlockMetrics(len(recipient) // size, exact, candidate, eligible, beyond)


@given(proposals(), st.lists(tokens, max_size=3), block_sizes)
def test_metrics_are_what_the_definition_counts(
    proposed: tuple[list[int], list[Span]], donors: list[list[int]], size: int
) -> None:
    recipient, spans = proposed
    counted = measure_blocks(ids(recipient), collect_blocks(map(ids, donors), size), spans, size)
    assert counted == metrics_by_definition(recipient, donors, spans, size)


@given(tokens, st.lists(tokens, max_size=3), block_sizes)
def test_the_exact_prefix_is_the_longest_run_of_leading_blocks_of_one_donor(
    recipient: list[int], donors: list[list[int]], size: int
) -> None:
    longest = 0
    for blocks in range(len(recipient) // size + 1):
        if blocks == 0 or any(
            len(donor) >= blocks * size and donor[: blocks * size] == recipient[: blocks * size] for donor in donors
        ):
            longest = blocks * size
    assert count_exact_prefix(ids(recipient), map(ids, donors), size) == longest


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.lists(tokens, max_size=3), block_sizes)
def test_the_exact_provider_proposes_the_exact_blocks_and_no_others(
    recipient: list[int], donors: list[list[int]], size: int
) -> None:
    provider = ExactBlockProvider(size)
    namespace = namespace_of(size)
    for number, donor in enumerate(donors):
        provider.offer_donor(DonorOffer(f"d{number}", namespace, ids(donor)))
    provider.check_integrity()
    result = provider.lookup(LookupRequest("r", namespace, ids(recipient)))
    spans = result.plan.spans if result.plan else ()
    for span in spans:
        donor = donors[int(span.donor_id[1:])]
        assert donor[span.donor_start : span.donor_end] == recipient[span.target_start : span.target_end]
    counted = measure_blocks(ids(recipient), collect_blocks(map(ids, donors), size), spans, size)
    assert counted.exact == counted.candidate == counted.eligible
    assert counted.eligible_beyond_exact == 0


def namespace_of(size: int) -> Namespace:
    return Namespace(
        model="m",
        revision="1",
        tokenizer="t",
        dtype="none",
        kv_layout="none",
        block_size=size,
        adapter=None,
        salt="tenant",
    )


def test_figures_worked_out_by_hand() -> None:
    # Blocks of 4. Recipient: 0-3 is a donor block; 4-7 is proposed from one donor, in two spans that meet seamlessly;
    # 8-11 is proposed from two donors; 12-15 from one donor that jumps; 16-19 lacks its last token; 20-21 is no block.
    recipient = list(range(22))
    donor = [90, 91, 92, 93, 0, 1, 2, 3, 94]
    spans = [
        Span(4, "a", 50, 2),
        Span(6, "a", 52, 2),
        Span(8, "a", 54, 2),
        Span(10, "b", 56, 2),
        Span(12, "a", 10, 3),
        Span(15, "a", 20, 1),
        Span(16, "a", 30, 3),
        Span(20, "a", 40, 2),
    ]
    counted = measure_blocks(ids(recipient), collect_blocks([ids(donor)], 4), spans, 4)
    assert counted == BlockMetrics(total=5, exact=1, candidate=3, eligible=1, eligible_beyond_exact=1)


@pytest.mark.parametrize(("shared", "prefix"), [(0, 0), (3, 0), (4, 4), (7, 4), (8, 8)])
def test_a_prefix_counts_in_whole_blocks(shared: int, prefix: int) -> None:
    recipient = ids(list(range(10)))
    donor = ids([*range(shared), *[99] * 5])
    assert count_exact_prefix(recipient, [ids([50]), donor], 4) == prefix


def test_a_block_inside_a_donor_but_not_on_its_grid_is_not_exact() -> None:
    counted = measure_blocks(ids([1, 2]), collect_blocks([ids([0, 1, 2, 3])], 2), (), 2)
    assert counted.exact == 0
    assert measure_blocks(ids([1, 2]), collect_blocks([ids([0, 9, 1, 2])], 2), (), 2).exact == 1
