"""What one decision of the Dynamo router costs: discovery, residency from Dynamo's real index, load and choice.

Three workers publish the KV events of all donors over Dynamo's event plane, and the router's own code decides about
reframed prompts, each of the donors' length. Discovery by files on loopback addresses: no server is needed.

    python benchmarks/placement_decision.py --donors 1000 --tokens 4096
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _prompts import BLOCK, donor, reframed

from semblend_core import Settings, donor_id_of
from semblend_dynamo.dynamo.deciding import Decider
from semblend_dynamo.dynamo.requests import RequestReader
from semblend_dynamo.dynamo.residency import Residency
from semblend_dynamo.placement import DonorBook, PlacementSettings, Reason

WORKERS = 3
START_S = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--donors", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--decisions", type=int, default=500)
    parser.add_argument("--quick", action="store_true", help="100 donors, 50 decisions")
    options = parser.parse_args()
    if options.quick:
        options.donors, options.decisions = 100, 50
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": folder,
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_LOG": "error",
            "DYN_SELF_HOST_METADATA": "0",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
        }
        script = Path(__file__).parent / "_donor_worker.py"
        sizes = [str(WORKERS), str(options.donors), str(options.tokens)]
        workers = [subprocess.Popen([sys.executable, str(script), str(n), *sizes]) for n in range(WORKERS)]
        try:
            figures = _measured(options)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    print(json.dumps(figures))


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    import uvloop
    from dynamo.runtime import DistributedRuntime, dynamo_worker

    figures: dict[str, Any] = {}

    @dynamo_worker()
    async def run(runtime: DistributedRuntime) -> None:
        figures.update(await _measure(runtime, options))

    uvloop.run(run())
    return figures


async def _measure(runtime: Any, options: argparse.Namespace) -> dict[str, Any]:
    from dynamo.llm import KvRouter, KvRouterConfig

    workers = runtime.endpoint("workers.backend.generate")
    client = await workers.client()
    await client.wait_for_instances()
    router = KvRouter(endpoint=workers, block_size=BLOCK, kv_router_config=KvRouterConfig())
    reader = RequestReader("benchmark", BLOCK)
    book = DonorBook(Settings(lookup_budget_ms=1000))
    started = time.perf_counter()
    for number in range(options.donors):
        tokens = donor(number, options.tokens)
        book.add(reader.namespace("tenant", None), donor_id_of(tokens), tokens)
    add_ms = (time.perf_counter() - started) * 1e3 / options.donors
    await _until_indexed(router, client, options)

    residency = Residency(router, client.instance_ids, BLOCK)
    decider = Decider(book, residency, PlacementSettings())
    decided, native = [], []
    for number in range(-20, options.decisions):  # the first twenty warm up
        which = (number * 7919) % options.donors
        tokens = reframed(which, options.tokens, number + 20)
        request = {"token_ids": tokens.tolist(), "routing": {"cache_salt": "tenant"}}
        routed = reader.read(f"request-{number}", request)
        # The workers hash without a salt, as engines do for one tenant's pool.
        routed = type(routed)(**{name: getattr(routed, name) for name in routed.__slots__} | {"salt": None})
        verdict = await decider.decide(routed)
        assert verdict.decision.reason is Reason.SPANS, verdict.decision
        book.report(routed.request_id, placed=True)
        begun = time.perf_counter()
        await router.best_worker(routed.token_list)
        elapsed = (time.perf_counter() - begun) * 1e3
        if number >= 0:
            decided.append(verdict.decide_ms)
            native.append(elapsed)
    stats = book.provider.stats()
    return {
        "donors": options.donors,
        "tokens_per_donor": options.tokens,
        "decisions": len(decided),
        "decide_ms": _percentiles(decided),
        "dynamo_best_worker_ms": _percentiles(native),
        "add_donor_ms": round(add_ms, 3),
        "donor_index_bytes": stats.donor_bytes,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


async def _until_indexed(router: Any, client: Any, options: argparse.Namespace) -> None:
    deadline = time.monotonic() + START_S
    blocks = options.tokens // BLOCK
    for number in range(options.donors - 1, -1, -max(1, options.donors // 50)):
        tokens = donor(number, options.tokens).tolist()
        while True:
            rows = (await router.get_overlap_scores(tokens))["workers"]
            if (
                len(client.instance_ids()) == WORKERS
                and max((row["device_blocks"] for row in rows), default=0) == blocks
            ):
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"Dynamo's index does not have donor {number} after {START_S} s: {rows}")
            await asyncio.sleep(0.2)


def _percentiles(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100)
    return {"p50": round(cuts[49], 3), "p90": round(cuts[89], 3), "p99": round(cuts[98], 3)}


if __name__ == "__main__":
    main()
