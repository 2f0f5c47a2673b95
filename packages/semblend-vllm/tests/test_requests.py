"""Tainted hashes are this request's alone, and can be taken back."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from semblend_core import DeclineReason, Namespace, Span, donor_id_of
from semblend_core.serving import Claim, RequestBook, Stage
from semblend_vllm.scheduler.requests import VllmRequest

NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="float32", kv_layout="vllm", block_size=16, adapter=None, salt=None
)


def life(blocks: int = 6) -> VllmRequest:
    hashes = [bytes([n]) * 32 for n in range(blocks)]
    request = SimpleNamespace(request_id="req", block_hashes=hashes, prompt_token_ids=list(range(blocks * 16)))
    return VllmRequest(request, "req", NAMESPACE, request.prompt_token_ids)


def test_blocks_before_the_first_approximate_one_keep_their_hashes() -> None:
    one = life()
    before = list(one.request.block_hashes)
    one.taint(35, 16)
    assert one.request.block_hashes[:2] == before[:2]
    assert not set(one.request.block_hashes[2:]) & set(before)
    assert all(isinstance(each, bytes) and len(each) == 32 for each in one.request.block_hashes)


def test_two_requests_with_one_id_share_no_tainted_hash() -> None:
    one, other = life(), life()
    one.taint(0, 16)
    other.taint(0, 16)
    assert not set(one.request.block_hashes) & set(other.request.block_hashes)


def test_what_was_not_written_can_be_untainted() -> None:
    one = life()
    before = list(one.request.block_hashes)
    one.taint(0, 16)
    one.untaint()
    assert one.request.block_hashes == before
    assert one.approximate_from is None


def test_a_request_that_starts_over_is_an_ordinary_one() -> None:
    one = life()
    book: RequestBook[VllmRequest] = RequestBook(lambda outcome: None, VllmRequest.untaint)
    before = list(one.request.block_hashes)
    book.claim(one, Claim(32, 64, (Span(40, "d", 0, 24),), ((32, 40),)))
    one.taint(40, 16)
    book.load(one)
    one.captured = True
    one.request.block_hashes.append(b"a generated block's hash, grown from tainted ones")
    with pytest.raises(AssertionError, match="never be published"):
        one.untaint()
    book.decline(one, DeclineReason.LOAD_FAILED)
    book.start_over(one)
    assert one.request.block_hashes == before
    assert (one.claim, one.stage, one.captured, one.approximate_from) == (None, Stage.DECLINED, False, None)


def test_the_prompt_is_read_as_the_contract_wants_it() -> None:
    ids = life().token_ids
    assert ids.dtype == np.int32
    assert ids.tolist() == list(range(96))
    assert not ids.flags.writeable


def test_a_donor_is_named_by_its_tokens() -> None:
    assert donor_id_of(np.arange(5, dtype=np.int32)) == donor_id_of(np.arange(5, dtype=np.int32))
    assert donor_id_of(np.arange(5, dtype=np.int32)) != donor_id_of(np.arange(6, dtype=np.int32))
