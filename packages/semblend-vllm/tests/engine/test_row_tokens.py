"""A row's tokens in vLLM's batches: its own at their places, and those in front of them never looked at."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from operator import add
from typing import Any

import numpy as np
import pytest

START, OWN = 4000, [17, 23, 5]


@pytest.fixture
def row(environment: None) -> Any:
    from semblend_vllm.compat.row_tokens import RowTokens

    return RowTokens(START, list(OWN))


def test_it_is_as_long_as_the_prompt_up_to_its_end(row: Any) -> None:
    assert len(row) == START + 3
    assert [row[START], row[START + 2], row[-1]] == [17, 5, 5]
    assert list(row)[START:] == row[START:] == OWN
    with pytest.raises(IndexError):
        row[START + 3]


def test_a_row_tells_a_few_tokens_in_front_of_it_and_one_behind(row: Any) -> None:
    prompt = list(range(100, 400))
    middle, begin = type(row).of(prompt, 200, 206), type(row).of(prompt, 10, 12)
    assert (len(middle), middle[200:206], middle[140]) == (207, prompt[200:206], prompt[140])
    assert (len(begin), begin[:12]) == (13, prompt[:12])


def test_what_adds_to_it_or_copies_it_gets_a_list(row: Any) -> None:
    """As users' logits processors may, which vLLM hands the prompts of a batch."""
    behind, in_front, copied = add(row, [9]), add([9], row), row.copy()
    assert [type(made) for made in (behind, in_front, copied)] == [list, list, list]
    assert (behind[-2:], in_front[0], copied) == ([5, 9], 9, list(row))


def test_the_first_model_runners_batch_takes_it_as_an_array(row: Any) -> None:
    batch = np.full((2, 5000), -1, np.int32)
    batch[1, : len(row)] = row
    assert batch[1, START : START + 3].tolist() == OWN
    assert (batch[0] == -1).all()


def test_what_is_sent_to_another_process_does_not_grow_with_what_is_in_front_of_it(row: Any) -> None:
    sent = pickle.dumps(row)
    assert len(sent) < 200
    assert list(pickle.loads(sent)) == list(row)


@pytest.fixture
def staged(environment: None) -> Callable[[], Any]:
    """vLLM's own, of which a CPU has only what gathers the writes."""
    from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

    def make() -> Any:
        tensor = StagedWriteTensor.__new__(StagedWriteTensor)
        tensor._staged_write_indices, tensor._staged_write_starts = [], []
        tensor._staged_write_contents, tensor._staged_write_cu_lens = [], []
        return tensor

    return make


def test_the_second_model_runner_gathers_its_own_tokens_and_where_they_begin(
    row: Any, staged: Callable[[], Any]
) -> None:
    from semblend_vllm.compat.row_tokens import write_own_tokens_only

    for _ in range(2):  # Once more changes nothing.
        write_own_tokens_only()
        tensor = staged()
        tensor.stage_write(3, 0, [1, 2])
        tensor.stage_write(5, 0, row)
        assert tensor._staged_write_indices == [3, 5]
        assert tensor._staged_write_starts == [0, START]
        assert tensor._staged_write_contents == [1, 2, *OWN]
        assert tensor._staged_write_cu_lens == [2, 5]
