"""LMCache as our tier, over a Redis that comes and goes; and LMCache beside us, where we are off and say why."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from semblend_core import tenant_of_salt
from semblend_core.testing import KillableServer, redis_server, wait_until

# Imported by the servers only: in this process vLLM could start no engine after it.
pytestmark = pytest.mark.skipif(find_spec("lmcache") is None, reason="LMCache is in this package's engine environment")

LARGEST_KL = 0.05
"""One document behind a new instruction."""
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
OURS = {"kv_connector": "SemBlendConnectorV1", "kv_connector_module_path": "semblend_vllm", "kv_role": "kv_both"}
LMCACHE = {"kv_connector": "LMCacheOnCpu", "kv_connector_module_path": "_lmcache_on_cpu", "kv_role": "kv_both"}


def text(kind: str) -> str:
    return " ".join(f"{kind} {n} weighs {n * 29 % 83 + 3} pounds, cost {n * 13 % 47 + 2} crowns." for n in range(30))


def donor(kind: str) -> str:
    return f"A list.\n\n{text(kind)}\n\nQuestion: which is the lightest?\nAnswer:"


def recipient(kind: str) -> str:
    return f"System: answer in a few words, from the list below.\n\n{text(kind)}\n\nQuestion: what?\nAnswer:"


def keep(server: Any, kind: str) -> None:
    """As ``Server.keep``, but for a machine on which LMCache takes long: vLLM hears of it with a later request too."""
    donors = len(server.records("donor_registered"))
    server.ask(donor(kind), tokens=1)

    def registered() -> bool:
        server.ask("Say yes.", tokens=1)
        return len(server.records("donor_registered")) > donors

    wait_until(registered, "a donor of a prompt that was served", every_s=0.5)


def cold_answer(server: Any, prompt: str) -> Any:
    return server.reused(prompt, cache_salt="cold", kv_transfer_params={"semblend": "off"})


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableServer]:
    server = redis_server(tmp_path_factory.mktemp("redis"))
    if server is None:
        pytest.skip("needs Debian's redis-server")
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def start(new_server: Callable[..., Any], redis: KillableServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Servers whose only tier is LMCache over the same Redis."""
    settings = {
        "SEMBLEND_STORE_HOST_BYTES": "0",
        "SEMBLEND_STORE_LMCACHE_BYTES": "1GiB",
        "SEMBLEND_STORE_LMCACHE_URL": redis.url,
        "SEMBLEND_STORE_LMCACHE_PATH": str(tmp_path_factory.mktemp("list")),
    }
    return lambda: new_server(settings)


@pytest.fixture(scope="module")
def second(start: Callable[[], Any]) -> Iterator[Any]:
    """A server behind one that has left donors, and ended."""
    with start() as first:
        for kind in ("Barrel", "Anchor"):
            keep(first, kind)
    with start() as server:
        keep(server, "Drum")  # The model must have proved itself on a prompt before anything is loaded.
        yield server


def test_another_process_donor_is_reused(second: Any, divergence: Any) -> None:
    cold = cold_answer(second, recipient("Barrel"))
    reused = second.reused(recipient("Barrel"))
    assert reused.confirmed_tokens > 0.7 * reused.prompt_tokens
    assert divergence(cold, reused) < LARGEST_KL


def test_another_salt_finds_nothing(second: Any) -> None:
    answer = second.reused(recipient("Barrel"), cache_salt="another")
    assert (answer.cached_tokens, answer.confirmed_tokens) == (0, 0)


def test_a_redis_that_is_gone_is_a_cold_prefill_and_a_counted_reason_until_it_is_back(
    second: Any, redis: KillableServer, divergence: Any
) -> None:
    cold = cold_answer(second, recipient("Anchor"))
    redis.kill()
    answer = second.reused(recipient("Anchor"), kv_transfer_params={"semblend": {"capture": False}})
    assert answer.confirmed_tokens == 0
    assert answer.declined == ["load_failed"]
    assert answer.text == cold.text
    redis.start()
    again = f"Now then. {recipient('Anchor')}"  # vLLM's own cache holds the other by now.
    reused = second.reused(again)
    assert reused.confirmed_tokens > 0.7 * reused.prompt_tokens
    assert divergence(cold_answer(second, again), reused) < LARGEST_KL


def test_a_purge_reaches_redis(second: Any, redis: KillableServer) -> None:
    def held() -> str:
        command = ["redis-cli", "-p", str(redis.port), "keys", "*"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert tenant_of_salt("http") in held()
    second.control("purge", "http")
    assert tenant_of_salt("http") not in held()


@pytest.mark.parametrize("order", ["LMCache first", pytest.param("LMCache last", marks=pytest.mark.exhaustive)])
def test_beside_lmcache_we_are_off_and_lmcache_holds_nothing_but_exact_kv(
    new_server: Callable[..., Any], order: str
) -> None:
    both = [LMCACHE, OURS] if order == "LMCache first" else [OURS, LMCACHE]
    transfer = {"kv_connector": "MultiConnector", "kv_role": "kv_both"}
    transfer["kv_connector_extra_config"] = {"connectors": both}  # type: ignore[assignment]
    settings = {
        "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]),
        "LMCACHE_CHUNK_SIZE": "32",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.5",
        "LMCACHE_TRACK_USAGE": "false",
        "PYTHONHASHSEED": "0",
    }
    flags = ("--disable-hybrid-kv-cache-manager", "--kv-transfer-config", json.dumps(transfer))
    with new_server(settings, *flags) as server:
        said = [line for line in server.log.read_text().splitlines() if "SemBlend is off: " in line]
        assert len(said) == 1
        assert "inside MultiConnector" in said[0]
        assert "exact keys" in said[0]
        server.ask(donor("Barrel"), tokens=1)
        cold = server.ask(recipient("Barrel"))
        assert _cached(cold) == 0, "nothing approximate is reused"
        assert server.client.post("/reset_prefix_cache").status_code == 200
        exact = server.ask(recipient("Barrel"))
        assert _cached(exact) > 0.9 * exact["usage"]["prompt_tokens"] - 32, "LMCache serves what it stored"
        assert exact["choices"][0]["text"] == cold["choices"][0]["text"]


def _cached(answer: Any) -> int:
    return int((answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0)
