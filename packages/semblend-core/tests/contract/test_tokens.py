"""Token ids come in as anything that is a flat sequence of ids, and as nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.contract import InvalidTokenIdsError, as_token_ids
from semblend_core.contract.tokens import MAX_TOKEN_ID


@pytest.mark.parametrize(
    "tokens",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        np.array([1, 2, 3], np.int64),
        np.array([1, 2, 3], np.uint64),
        np.array([1, 2, 3], np.uint8),
        np.array([1, 2, 3], ">i4"),
        np.array([1, 0, 2, 0, 3], np.int32)[::2],
        np.array([3, 2, 1], np.int64)[::-1],
    ],
)
def test_ids_of_any_integer_kind_become_read_only_int32(tokens: Any) -> None:
    ids = as_token_ids(tokens)
    assert ids.tolist() == [1, 2, 3]
    assert ids.dtype == np.int32
    assert ids.flags.c_contiguous
    assert not ids.flags.writeable


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ([1, -1], "negative, got -1"),
        (np.array([1, -7], np.int32), "negative, got -7"),
        ([1.0, 2.0], "must be integers, got float64"),
        (np.array([1, 2], np.float32), "must be integers, got float32"),
        ([True, False], "must be integers, got bool"),
        (np.array([True]), "must be integers, got bool"),
        (["a"], "must be integers"),
        ([None], "must be integers"),
        (None, "must be integers"),
        ("12", "must be integers"),
        ({1, 2}, "must be integers"),
        ([2**31], "2147483648 is above the largest allowed"),
        ([2**63], "above the largest allowed"),
        ([2**70], "must be integers"),
        (np.array([2**31], np.uint64), "2147483648 is above"),
        (np.array([2**64 - 1], np.uint64), "above the largest allowed"),
        (np.array([2**31], np.uint32), "above the largest allowed"),
        ([[1, 2], [3, 4]], r"one flat sequence, got shape \(2, 2\)"),
        ([[1, 2], [3]], "one flat sequence"),
        ([[]], r"one flat sequence, got shape \(1, 0\)"),
        (np.int32(5), r"one flat sequence, got shape \(\)"),
    ],
)
def test_what_is_no_token_sequence_is_refused(tokens: Any, problem: str) -> None:
    with pytest.raises(InvalidTokenIdsError, match=problem):
        as_token_ids(tokens)


def test_a_read_only_array_with_a_negative_id_is_refused() -> None:
    ids = np.array([1, -1], np.int32)
    ids.flags.writeable = False
    with pytest.raises(InvalidTokenIdsError, match="negative"):
        as_token_ids(ids)


def test_a_refusal_quotes_little_of_a_long_prompt() -> None:
    with pytest.raises(InvalidTokenIdsError) as refusal:
        as_token_ids(np.full(100_000, 0.5).tolist())
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("tokens", [[], (), np.empty(0, np.int64), np.empty(0, np.float64)])
def test_nothing_is_an_empty_sequence(tokens: Any) -> None:
    assert as_token_ids(tokens).shape == (0,)
    assert as_token_ids(tokens).dtype == np.int32


def test_the_largest_id_passes() -> None:
    assert as_token_ids([0, MAX_TOKEN_ID]).tolist() == [0, 2**31 - 1]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_writable_array_is_copied(dtype: npt.DTypeLike) -> None:
    theirs = np.array([1, 2, 3], dtype)
    ids = as_token_ids(theirs)
    theirs[0] = 99
    assert ids.tolist() == [1, 2, 3]
    theirs[1] = 98  # The caller's own array stays writable.


def test_what_is_right_already_is_not_copied() -> None:
    ids = as_token_ids([1, 2, 3])
    assert np.shares_memory(as_token_ids(ids), ids)


def test_a_strided_read_only_view_stays_read_only() -> None:
    whole = np.arange(10, dtype=np.int32)
    whole.flags.writeable = False
    ids = as_token_ids(whole[::3])
    assert ids.tolist() == [0, 3, 6, 9]
    assert ids.flags.c_contiguous
    assert not ids.flags.writeable


@settings(deadline=None)
@given(st.lists(st.integers(0, MAX_TOKEN_ID), max_size=50))
def test_ids_come_back_as_they_went_in(tokens: list[int]) -> None:
    ids = as_token_ids(tokens)
    assert ids.tolist() == tokens
    assert as_token_ids(ids).tolist() == tokens
