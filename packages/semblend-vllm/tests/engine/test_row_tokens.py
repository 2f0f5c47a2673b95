"""A row's tokens in vLLM's batches: its own at their places, and those in front of them never looked at."""

from __future__ import annotations

import pickle
from collections.abc import Callable
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
