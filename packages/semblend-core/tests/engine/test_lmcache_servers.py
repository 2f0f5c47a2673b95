"""LMCache over a server: other processes find the donors, and one that goes away costs no more than a prefill."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmcache_donor_process as donor_process
import numpy as np
import pytest
import torch
from lmcache_donors import keep, load, make_kv, namespace_of, same_bytes
from redis import Redis

from semblend_core import Plan, Span
from semblend_core.kv import DonorStore, StoreDirectoryError
from semblend_core.kv.store import Tier, TransferFailedError
from semblend_core.recompute import RotateOnly
from semblend_core.testing import wait_until

OpenStore = Callable[..., DonorStore]
TEXT = " ".join(f"Crate {n} came from quay {n * 7 % 31} and holds {n * 3 % 40 + 2} lamps." for n in range(24))


def recovered(store: DonorStore) -> list[str]:
    return [donor.donor_id for donor in store.recover()]


@pytest.mark.parametrize("server", ["redis", "lmcache_server"])
def test_another_store_finds_what_one_has_left(
    open_store: OpenStore, server: str, request: pytest.FixtureRequest
) -> None:
    url, kv = request.getfixturevalue(server).url, make_kv()
    first = open_store(url)
    assert keep(first, "d", kv, salt="ours") == []
    first.close()
    second = open_store(url)
    assert recovered(second) == ["d"]
    assert same_bytes(load(second, "d", [(30, 690)], salt="ours")[0], kv, 30, 690)
    assert second.acquire(namespace_of("theirs"), "d") is None
    assert second.purge(namespace_of("ours").salt_digest).stored == 1
    third = open_store(url)
    assert recovered(third) == []
    assert keep(third, "d", kv, salt="ours") == []
    assert same_bytes(load(third, "d", [(0, 700)], salt="ours")[0], kv)


def test_a_purge_reaches_the_server(open_store: OpenStore, redis: Any) -> None:
    one, other = open_store(redis.url), open_store(redis.url)
    keep(one, "d", make_kv(), salt="ours")
    keep(one, "e", make_kv(1), salt="theirs")
    assert other.purge(namespace_of("ours").salt_digest).stored == 1  # It never heard of the donor but by the list.
    left = subprocess.run(["redis-cli", "-p", str(redis.port), "keys", "*"], capture_output=True, text=True, check=True)
    assert namespace_of("ours").digest not in left.stdout
    assert namespace_of("theirs").digest in left.stdout


def test_a_purge_that_the_server_does_not_hear_of_is_an_error(open_store: OpenStore, redis: Any) -> None:
    store = open_store(redis.url)
    keep(store, "d", make_kv(), salt="ours")
    redis.kill()
    with pytest.raises(StoreDirectoryError, match="may still lie in LMCache"):
        store.purge(namespace_of("ours").salt_digest)
    redis.start()
    store.purge(namespace_of("ours").salt_digest)
    assert recovered(open_store(redis.url)) == []


@pytest.mark.parametrize("server", ["redis", "lmcache_server"])
def test_a_server_that_goes_away_is_counted_and_found_again(
    open_store: OpenStore, server: str, request: pytest.FixtureRequest
) -> None:
    serving, kv = request.getfixturevalue(server), make_kv()
    first = open_store(serving.url)
    keep(first, "d", kv)
    first.close()
    store = open_store(serving.url)
    assert recovered(store) == ["d"]
    serving.kill()
    with pytest.raises(TransferFailedError, match="lmcache_error"):
        load(store, "d", [(0, 700)])
    assert keep(store, "e", make_kv(1)) == ["lmcache_error"]
    told = store.stats()
    assert told.failed_loads["lmcache_error"] == 1
    assert told.tiers[Tier.LMCACHE].declines["lmcache_error"] == 1
    serving.start()
    if server == "redis":  # The other keeps its donors in memory alone.
        assert same_bytes(load(store, "d", [(0, 700)])[0], kv)
    wait_until(lambda: keep(store, "f", make_kv(2)) == [], "a donor that is kept again")
    assert same_bytes(load(store, "f", [(0, 700)])[0], make_kv(2))
    store.check_integrity()


def test_chunks_that_have_changed_places_are_never_handed_out(open_store: OpenStore, redis: Any) -> None:
    """Each is whole, and fits its own checksum."""
    first, server = open_store(redis.url), Redis(port=redis.port)
    keep(first, "d", make_kv())
    ours = contents(server)
    keep(first, "e", make_kv(1))
    first.close()
    theirs = {name: content for name, content in contents(server).items() if name not in ours}
    by_length = {len(content): name for name, content in theirs.items()}
    for name, content in ours.items():
        other = by_length[len(content)]
        server.set(name, theirs[other])
        server.set(other, content)
    second = open_store(redis.url)
    assert sorted(recovered(second)) == ["d", "e"]
    for donor in "de":
        with pytest.raises(TransferFailedError, match="corrupt"):
            load(second, donor, [(0, 700)])
    assert dict(second.stats().quarantined) == {"checksum": 2}


def test_two_chunks_of_one_donor_that_have_changed_places_are_not_either(open_store: OpenStore, redis: Any) -> None:
    first, server = open_store(redis.url), Redis(port=redis.port)
    keep(first, "d", make_kv())
    first.close()
    (one, its), (other, others) = sorted(contents(server).items(), key=lambda item: -len(item[1]))[:2]
    assert len(its) == len(others)
    server.set(one, others)
    server.set(other, its)
    second = open_store(redis.url)
    assert recovered(second) == ["d"]
    with pytest.raises(TransferFailedError, match="corrupt"):
        load(second, "d", [(0, 700)])


def lengthened(content: bytes) -> bytes:
    return content + bytes(5000)


def cut(content: bytes) -> bytes:
    return content[:1000]


@pytest.mark.parametrize("change", [lengthened, cut])
def test_what_has_another_size_is_damaged_and_the_client_goes_on(
    open_store: OpenStore, redis: Any, change: Callable[[bytes], bytes]
) -> None:
    first, server = open_store(redis.url), Redis(port=redis.port)
    keep(first, "d", make_kv())
    first.close()
    name, content = next(iter(contents(server).items()))
    server.set(name, change(content))
    second = open_store(redis.url)
    assert recovered(second) == ["d"]
    with pytest.raises(TransferFailedError, match="corrupt"):
        load(second, "d", [(0, 700)])
    assert second.acquire(namespace_of(), "d") is None
    assert keep(second, "d", make_kv()) == []
    assert same_bytes(load(second, "d", [(0, 700)])[0], make_kv())
    second.check_integrity()


def contents(server: Redis) -> dict[bytes, bytes]:
    """Chunks by the names that LMCache gives them."""
    return {name: server.get(name) for name in server.keys("*kv_bytes")}  # type: ignore[misc]


def test_another_process_donor_is_relocated_and_reused_as_if_it_were_ours(
    open_store: OpenStore, redis: Any, tmp_path: Path
) -> None:
    from semblend_core.reference import ReferenceEngine, load_default_tokenizer, prefill_reusing

    encode = load_default_tokenizer().encode
    text = encode(TEXT).ids
    donor = encode("A list of crates.\n\n").ids + text
    opening = encode("System: answer from the list below, in one word and no more.\n\n").ids
    prompt = np.array(opening + text + encode("\n\nQuestion: what is in crate 7?\nAnswer:").ids, np.int32)
    (tmp_path / "donor.json").write_text(json.dumps(donor))
    command = [sys.executable, donor_process.__file__, redis.url, str(tmp_path / "list"), str(tmp_path / "donor.json")]
    subprocess.run(command, check=True, timeout=300)

    engine = ReferenceEngine.load()
    ours = engine.capture(engine.prefill(np.array(donor, np.int32)).workspace, len(donor))
    store = open_store(redis.url, lmcache_bytes=256 * 2**20)
    assert recovered(store) == ["donor"]
    handle = store.acquire(donor_process.namespace(), "donor")
    assert handle is not None
    with handle:
        theirs = store.load(handle).result(30)[0]
    assert torch.equal(theirs.keys, ours.keys)
    assert ours.values is not None
    assert torch.equal(theirs.values, ours.values)  # type: ignore[arg-type]

    start = len(donor) - len(text)
    plan = Plan.over("r", prompt.size, 0, [Span(len(opening), "donor", start, len(text))])
    logits = [
        prefill_reusing(engine, prompt, plan, {"donor": kv}, RotateOnly(), 0.0).prefill.logits for kv in (ours, theirs)
    ]
    assert torch.equal(*logits)
