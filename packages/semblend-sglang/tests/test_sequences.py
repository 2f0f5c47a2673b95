"""Rows are sequences for attention, and nothing for what comes behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from semblend_sglang.worker.sequences import as_if_alone, as_sequences, for_sampling

PROMPTS = {0: list(range(100, 200)), 1: list(range(300, 350)), 2: list(range(500, 600))}
OWN = {0: (90, 10), 1: (0, 50), 2: (80, 20)}
"""What each request computes by itself: where it begins, and how much."""
ROWS = {0: ((0, 8), (40, 44)), 2: ((5, 6),)}


def batch() -> Any:
    """As SGLang's scheduler makes one, of three prompts: the first and the last have rows."""
    starts, lengths = zip(*OWN.values(), strict=True)
    table = torch.arange(3 * 100).view(3, 100) + 1000
    own = [range(start, start + length) for start, length in OWN.values()]
    return SimpleNamespace(
        reqs=[SimpleNamespace(rid=str(n), grammar=f"grammar of {n}") for n in range(3)],
        prefix_lens=list(starts),
        extend_lens=list(lengths),
        extend_num_tokens=sum(lengths),
        extend_logprob_start_lens=None,
        req_pool_indices=torch.arange(3),
        seq_lens=torch.tensor([100, 50, 100]),
        seq_lens_cpu=torch.tensor([100, 50, 100]),
        seq_lens_sum=250,
        orig_seq_lens=torch.tensor([100, 50, 100]),
        multimodal_inputs=None,
        input_ids=torch.cat([torch.tensor([PROMPTS[n][at] for at in where]) for n, where in enumerate(own)]),
        out_cache_loc=torch.cat([table[n, where.start : where.stop] for n, where in enumerate(own)]),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
    )


@pytest.fixture
def made() -> Any:
    whole = batch()
    before = dict(vars(whole))
    with as_sequences(whole, ROWS, {n: PROMPTS[n] for n in ROWS}) as view:
        shown = SimpleNamespace(**vars(whole))
    assert all(vars(whole)[name] is value for name, value in before.items()), "the batch is as it was"
    return whole, shown, view


def test_each_row_is_a_sequence_with_its_own_prefix_tokens_and_slots(made: Any) -> None:
    whole, shown, _ = made
    assert [request.rid for request in shown.reqs] == ["0", "0", "0", "1", "2", "2"]
    assert shown.prefix_lens == [0, 40, 90, 0, 5, 80]
    assert shown.extend_lens == [8, 4, 10, 50, 1, 20]
    assert shown.seq_lens.tolist() == shown.seq_lens_cpu.tolist() == [8, 44, 100, 50, 6, 100]
    expected = [(n, at) for n, start, end in _runs() for at in range(start, end)]
    assert shown.input_ids.tolist() == [PROMPTS[n][at] for n, at in expected]
    table = whole.req_to_token_pool.req_to_token
    assert shown.out_cache_loc.tolist() == [int(table[n, at]) for n, at in expected]


def test_sampling_sees_one_entry_per_request(made: Any) -> None:
    whole, shown, view = made
    forward_batch = SimpleNamespace(
        sampling_info=SimpleNamespace(grammars=[request.grammar for request in shown.reqs]),
        watermark_prompt_tail_ids=["0a", "0b", "0", "1", "2a", "2"],
        watermark_context_hash_history=None,
    )
    for_sampling(forward_batch, whole.reqs, view)
    assert forward_batch.sampling_info.grammars == ["grammar of 0", "grammar of 1", "grammar of 2"]
    assert forward_batch.watermark_prompt_tail_ids == ["0", "1", "2"]
    assert view.extend_seq_lens_cpu == [22, 50, 21]


def test_some_requests_of_a_batch_can_be_shown_alone_with_rows_of_their_own() -> None:
    whole = batch()
    before = dict(vars(whole))
    with as_if_alone(whole, [0, 2]), as_sequences(whole, {1: ((5, 9),)}, {1: PROMPTS[2]}) as view:
        shown = SimpleNamespace(**vars(whole))
    assert all(vars(whole)[name] is value for name, value in before.items()), "the batch is as it was"
    assert [request.rid for request in shown.reqs] == ["0", "2", "2"]
    assert shown.prefix_lens == [90, 5, 80]
    assert shown.seq_lens.tolist() == shown.seq_lens_cpu.tolist() == [100, 9, 100]
    expected = [(n, at) for n, start, end in ((0, 90, 100), (2, 5, 9), (2, 80, 100)) for at in range(start, end)]
    assert shown.input_ids.tolist() == [PROMPTS[n][at] for n, at in expected]
    table = whole.req_to_token_pool.req_to_token
    assert shown.out_cache_loc.tolist() == [int(table[n, at]) for n, at in expected]
    assert (view.batch_size, view.extend_seq_lens_cpu, view.own_sequences()) == (2, [10, 24], [0, 2])


def _runs() -> list[tuple[int, int, int]]:
    runs = []
    for n, (start, length) in OWN.items():
        runs += [(n, *run) for run in ROWS.get(n, ())]
        runs.append((n, start, start + length))
    return runs
