"""Tainted hashes are this request's alone, and can be taken back."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from semblend_core import Namespace, donor_id_of
from semblend_vllm.requests import FollowedRequest

NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="float32", kv_layout="vllm", block_size=16, adapter=None, salt=None
)


def followed(blocks: int = 6) -> FollowedRequest:
    hashes = [bytes([n]) * 32 for n in range(blocks)]
    request = SimpleNamespace(request_id="req", block_hashes=hashes, prompt_token_ids=list(range(blocks * 16)))
    return FollowedRequest(request, NAMESPACE)


def test_blocks_before_the_first_approximate_one_keep_their_hashes() -> None:
    one = followed()
    before = list(one.request.block_hashes)
    one.taint(35, 16)
    assert one.request.block_hashes[:2] == before[:2]
    assert not set(one.request.block_hashes[2:]) & set(before)
    assert all(isinstance(each, bytes) and len(each) == 32 for each in one.request.block_hashes)


def test_two_requests_with_one_id_share_no_tainted_hash() -> None:
    one, other = followed(), followed()
    one.taint(0, 16)
    other.taint(0, 16)
    assert not set(one.request.block_hashes) & set(other.request.block_hashes)


def test_what_was_not_written_can_be_untainted() -> None:
    one = followed()
    before = list(one.request.block_hashes)
    one.taint(0, 16)
    one.untaint()
    assert one.request.block_hashes == before
    assert one.approximate_from is None


def test_a_request_that_starts_over_is_an_ordinary_one() -> None:
    one = followed()
    before = list(one.request.block_hashes)
    one.taint(40, 16)
    one.ordered = one.captured = True
    one.request.block_hashes.append(b"a generated block's hash, grown from tainted ones")
    one.start_over()
    assert one.request.block_hashes == before
    assert (one.claim, one.ordered, one.captured, one.approximate_from) == (None, False, False, None)


def test_the_prompt_is_read_as_the_contract_wants_it() -> None:
    ids = followed().token_ids
    assert ids.dtype == np.int32
    assert ids.tolist() == list(range(96))
    assert not ids.flags.writeable


def test_a_donor_is_named_by_its_tokens() -> None:
    assert donor_id_of(np.arange(5, dtype=np.int32)) == donor_id_of(np.arange(5, dtype=np.int32))
    assert donor_id_of(np.arange(5, dtype=np.int32)) != donor_id_of(np.arange(6, dtype=np.int32))
