"""Blocks behind approximate KV go by a lineage's name, and that can be taken back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from semblend_core import DeclineReason, Namespace, Settings, Span, donor_id_of
from semblend_core.serving import Claim, Lineage, RequestBook, Stage
from semblend_vllm.scheduler import requests
from semblend_vllm.scheduler.requests import Follower, Taken, VllmRequest

NAMESPACE = Namespace(
    model="m",
    revision="r",
    tokenizer="t",
    dtype="float32",
    kv_layout="vllm",
    block_size=16,
    adapter=None,
    salt="tenant",
)


def life(blocks: int = 6) -> VllmRequest:
    hashes = [bytes([n]) * 32 for n in range(blocks)]
    request = SimpleNamespace(request_id="req", block_hashes=hashes, prompt_token_ids=list(range(blocks * 16)))
    request._block_hasher = lambda request: [bytes([len(request.block_hashes)]) * 32]
    return VllmRequest(request, "req", NAMESPACE, request.prompt_token_ids)


def lineage(start: int, name: int = 0x40) -> Lineage:
    return Lineage(bytes([name]) * 32, NAMESPACE.digest, start, b"")


def test_blocks_before_the_first_approximate_one_keep_their_hashes() -> None:
    one = life()
    before = list(one.request.block_hashes)
    one.lineage = lineage(32)
    one.rename(16)
    assert one.request.block_hashes[:2] == before[:2]
    assert not set(one.request.block_hashes[2:]) & set(before)
    assert all(isinstance(each, bytes) and len(each) == 32 for each in one.request.block_hashes)


def test_requests_of_one_lineage_share_its_names_and_no_others() -> None:
    one, same, other = life(), life(), life()
    one.lineage, same.lineage, other.lineage = lineage(0), lineage(0), lineage(0, name=0x50)
    for each in (one, same, other):
        each.rename(16)
    assert one.request.block_hashes == same.request.block_hashes
    assert not set(one.request.block_hashes) & set(other.request.block_hashes)


def test_behind_what_is_taken_the_claim_has_names_of_its_own() -> None:
    one, taken = life(), life()
    one.taken = taken.taken = Taken((lineage(16),), exact=32, end=64)
    taken.rename(16)
    one.lineage = lineage(64, name=0x50)
    one.rename(16)
    assert one.request.block_hashes[:2] == one.true_hashes[:2]
    assert one.request.block_hashes[2:4] == taken.request.block_hashes[2:4]
    assert not set(one.request.block_hashes[4:]) & set(taken.request.block_hashes)


def test_generated_blocks_are_named_as_those_before_them() -> None:
    one, plain = life(), life()
    one.lineage = lineage(32)
    one.rename(16)
    plain.request.block_hashes += plain.request._block_hasher(plain.request)
    one.request.block_hashes.extend(one.request._block_hasher(one.request))
    assert one.true_hashes == plain.request.block_hashes
    assert one.request.block_hashes[-1] == bytes(a ^ 0x40 for a in plain.request.block_hashes[-1])


def test_without_a_prefix_cache_nothing_is_named() -> None:
    one = life(blocks=0)
    one.request._block_hasher = None
    one.lineage = lineage(0)
    one.rename(16)
    assert one.request._block_hasher is None
    assert one.request.block_hashes == []
    one.untaint()
    assert one.request._block_hasher is None


def test_what_was_not_written_can_be_untainted() -> None:
    one = life()
    before, hasher = list(one.request.block_hashes), one.request._block_hasher
    one.lineage = lineage(0)
    one.rename(16)
    one.untaint()
    assert one.request.block_hashes == before
    assert one.request._block_hasher is hasher
    assert one.approximate_from is None


def test_a_request_that_starts_over_is_an_ordinary_one() -> None:
    one = life()
    book: RequestBook[VllmRequest] = RequestBook(lambda outcome: None, VllmRequest.untaint)
    before = list(one.request.block_hashes)
    book.claim(one, Claim(32, 64, (Span(40, "d", 0, 24),), ((32, 40),)))
    one.lineage = lineage(32)
    one.rename(16)
    book.load(one)
    one.captured = True
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


# --- Whose KV a request may use ------------------------------------------------------------------------------------


def follower(folder: Path, load_format: str = "auto") -> Follower:
    """As a process that starts now makes it."""
    model = SimpleNamespace(
        model=str(folder / "model"),
        revision=None,
        tokenizer="t",
        tokenizer_revision=None,
        dtype="torch.bfloat16",
        quantization=None,
        hf_overrides={},
        hf_config=SimpleNamespace(),
    )
    config = SimpleNamespace(
        model_config=model,
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=16),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        load_config=SimpleNamespace(load_format=load_format),
    )
    return Follower(config, Settings())


def digest(follow: Follower, adapter: Path | None = None, number: int = 1, **more: Any) -> str:
    lora = adapter and SimpleNamespace(lora_int_id=number, lora_name=adapter.name, lora_path=str(adapter), **more)
    return follow.namespace(SimpleNamespace(lora_request=lora, cache_salt=None)).digest


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("model", "adapter", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights.safetensors").write_bytes(name.encode())
    return tmp_path


def test_an_adapter_goes_by_its_weights_whatever_number_vllm_gives_it(folders: Path) -> None:
    before = digest(follower(folders), folders / "adapter", number=1)
    assert before == digest(follower(folders), folders / "adapter", number=7)
    assert before not in (digest(follower(folders), folders / "other"), digest(follower(folders)))
    (folders / "adapter" / "weights.safetensors").write_bytes(b"Adapter")
    assert digest(follower(folders), folders / "adapter") != before


def test_an_adapter_that_is_loaded_in_place_is_looked_at_again(folders: Path) -> None:
    follow = follower(folders)
    before = digest(follow, folders / "adapter")
    (folders / "adapter" / "weights.safetensors").write_bytes(b"Adapter")
    assert digest(follow, folders / "adapter") == before, "vLLM still has what it loaded"
    assert digest(follow, folders / "adapter", load_inplace=True) != before


def test_adapters_without_end_are_not_all_remembered(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_ADAPTERS", 8)
    follow = follower(folders)
    digests = {digest(follow, folders / "adapter", number) for number in range(50)}
    assert len(digests) == 1
    assert len(follow._adapters) == 8


def test_random_weights_are_no_other_processs(folders: Path) -> None:
    assert digest(follower(folders)) == digest(follower(folders))
    assert digest(follower(folders, "dummy")) != digest(follower(folders, "dummy"))
