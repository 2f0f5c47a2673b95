"""What the router adds to a request: streams of 16 chunks at a rate, straight to a stub, by the router, and by smg.

Client, router, gateway and stub replicas share this machine: the CPU seconds of each are reported beside the times.
With --dynamo (in this package's `engine` environment): Dynamo's frontend too, with two workers that answer at once, by
itself and with our router component behind it. It tokenizes, so there is nothing to compare it with directly.
With --soak N: N requests while replicas die and come back; none may be lost that had not begun to stream.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _fleet import end, free_port, process, smg, wait_for
from _load import LoadClient, Timing, at_rate, in_flight, percentile

TICKS = os.sysconf("SC_CLK_TCK")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=10, help="Of each turn.")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--words", type=int, default=400, help="Of each prompt.")
    parser.add_argument("--policy", default="semantic_locality")
    parser.add_argument("--smg", help="The program smg, from an environment of its own.")
    parser.add_argument("--dynamo", action="store_true", help="Dynamo's frontend in the same run.")
    parser.add_argument("--soak", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    given = options()
    if given.quick:
        given.rate, given.seconds, given.turns = min(given.rate, 50), 2, 1
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        result = soak(Path(name), given) if given.soak else overhead(Path(name), stack, given)
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def prompts_of(given: argparse.Namespace, count: int = 64) -> list[str]:
    draw = random.Random(3)
    documents = [" ".join(f"word{draw.randrange(50_000)}" for _ in range(given.words)) for _ in range(count)]
    return [f"Instruction {draw.randrange(1000)}: {document}" for document in documents for _ in range(2)]


def start_stub(folder: Path, port: int) -> tuple[str, Any]:
    """A stub and the context that ends it."""
    command = [sys.executable, "-m", "semblend_dynamo.stub_replica", str(port), "16"]
    return f"http://127.0.0.1:{port}", process(command, folder / "stub.log")


def start_router(folder: Path, stack: contextlib.ExitStack, urls: list[str], given: argparse.Namespace) -> Any:
    port, log = free_port(), folder / "router.log"
    variables = {
        "SEMBLEND_ROUTER_PORT": str(port),
        "SEMBLEND_ROUTER_REPLICAS": ",".join(urls),
        "SEMBLEND_ROUTER_POLICY": given.policy,
        "SEMBLEND_ROUTER_PROBE_INTERVAL_S": "0.5",
        "SEMBLEND_ROUTER_BREAKER_OPEN_S": "1",
    }
    command = [sys.executable, "-c", "from semblend_dynamo.router.application import main; main()"]
    started = stack.enter_context(process(command, log, variables))
    url = f"http://127.0.0.1:{port}"
    wait_for(f"{url}/health", started, log)
    return url, started


def overhead(folder: Path, stack: contextlib.ExitStack, given: argparse.Namespace) -> dict[str, Any]:
    stubs = []
    for _ in range(2):
        url, context = start_stub(folder, free_port())
        stubs.append((url, stack.enter_context(context)))
    for url, started in stubs:
        wait_for(f"{url}/health", started, folder / "stub.log")
    urls = [url for url, _ in stubs]
    router_url, router_process = start_router(folder, stack, urls, given)
    ways = {"direct": LoadClient(urls[0]), "router": LoadClient(router_url)}
    pids = {"stubs": [started.pid for _, started in stubs], "router": [router_process.pid]}
    if given.smg:
        before = {int(each) for each in os.listdir("/proc") if each.isdigit()}
        ways["smg"] = LoadClient(stack.enter_context(smg(given.smg, urls, folder)))
        pids["smg"] = [pid for pid in _children(os.getpid()) if pid not in before]
    if given.dynamo:
        add_dynamo(folder, stack, ways, pids)
    timings: dict[str, list[Timing]] = {way: [] for way in ways}
    spent: dict[str, dict[str, float]] = {way: {} for way in ways}
    prompts = prompts_of(given)
    for turn in range(given.turns + 1):
        for way, client in ways.items():
            before_cpu = {name: sum(map(cpu_s, each)) for name, each in pids.items()} | {"client": time.process_time()}
            found = asyncio.run(_turn(client, given, prompts))
            if not turn:
                continue  # The first turn warms up.
            timings[way] += found
            for name, each in pids.items():
                used = sum(map(cpu_s, each)) - before_cpu[name]
                spent[way][name] = spent[way].get(name, 0) + used
            spent[way]["client"] = spent[way].get("client", 0) + time.process_time() - before_cpu["client"]
            print(way, figures(found), flush=True)
    rows = {way: figures(each) for way, each in timings.items()}
    added = {
        way: {name: round(rows[way][name] - rows["direct"][name], 3) for name in rows[way] if name.endswith("_ms")}
        for way in rows
        if way in ("router", "smg")
    }
    per_request = {
        way: {n: round(1000 * s / len(timings[way]), 3) for n, s in each.items()} for way, each in spent.items()
    }
    return {"rate": given.rate, "policy": given.policy, "rows": rows, "added": added, "cpu_ms_per_request": per_request}


def add_dynamo(
    folder: Path, stack: contextlib.ExitStack, ways: dict[str, LoadClient], pids: dict[str, list[int]]
) -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine" / "helpers"))
    from fleet import MODEL, fleet_with_files

    (folder / "dynamo").mkdir()
    fleet = stack.enter_context(fleet_with_files(folder / "dynamo"))
    workers = fleet.start_telling_workers("one", "two")
    pids["dynamo_workers"] = [each.popen.pid for each in workers.values()]
    router = fleet.start_router()
    pids["dynamo_router"] = [router.popen.pid]
    for way, namespace, mode in (("dynamo", "workers", "kv"), ("dynamo_semblend", "front", "round-robin")):
        frontend = fleet.start_frontend(namespace, mode)
        frontend.ask("Are all there?")
        ways[way] = LoadClient(f"http://127.0.0.1:{frontend.port}", MODEL)
        pids[f"{way}_frontend"] = [frontend.process.popen.pid]


async def _turn(client: LoadClient, given: argparse.Namespace, prompts: list[str]) -> list[Timing]:
    try:
        return await at_rate(client, given.rate, given.seconds, prompts)
    finally:
        client.close()


def figures(found: list[Timing]) -> dict[str, float]:
    first, total = [each.first_ms for each in found], [each.total_ms for each in found]
    return {
        "requests": len(found),
        "failed": sum(not (each.status == 200 and each.done) for each in found),
        "first_p50_ms": round(percentile(first, 0.5), 3),
        "first_p99_ms": round(percentile(first, 0.99), 3),
        "total_p50_ms": round(percentile(total, 0.5), 3),
        "total_p99_ms": round(percentile(total, 0.99), 3),
    }


def soak(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Three replicas; one at a time is killed and started again, all the while."""
    ports = [free_port() for _ in range(3)]
    running: dict[int, subprocess.Popen[bytes]] = {}

    def start(port: int) -> None:
        command = [sys.executable, "-m", "semblend_dynamo.stub_replica", str(port), "16"]
        with (folder / "stub.log").open("ab") as log:
            running[port] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    for port in ports:
        start(port)
        wait_for(f"http://127.0.0.1:{port}/health", running[port], folder / "stub.log")
    with contextlib.ExitStack() as stack:
        url, router = start_router(folder, stack, [f"http://127.0.0.1:{port}" for port in ports], given)
        result = asyncio.run(_soak(url, router.pid, ports, running, start, folder, given))
    for each in running.values():
        end(each)
    return result


async def _soak(
    url: str,
    router_pid: int,
    ports: list[int],
    running: dict[int, Any],
    start: Callable[[int], None],
    folder: Path,
    given: argparse.Namespace,
) -> dict[str, Any]:
    deaths, memory = 0, []
    stop = asyncio.Event()

    async def reap() -> None:
        nonlocal deaths
        while not stop.is_set():
            port = ports[deaths % len(ports)]
            end(running[port], signal.SIGKILL)
            deaths += 1
            await asyncio.sleep(0.7)
            start(port)
            # The next dies when this one is back: where all are dead nobody could serve a request.
            address = f"http://127.0.0.1:{port}/health"
            await asyncio.to_thread(wait_for, address, running[port], folder / "stub.log")
            await asyncio.sleep(1.5)

    client = LoadClient(url)
    prompts = prompts_of(given)
    reaper = asyncio.create_task(reap())
    found: list[Timing] = []
    begun = time.monotonic()
    for part in range(10):
        found += await in_flight(client, given.soak // 10, 16, prompts)
        memory.append(rss_mib(router_pid))
        print(f"{(part + 1) * 10}%: {len(found)} requests, {deaths} deaths, {memory[-1]:.1f} MiB", flush=True)
    stop.set()
    await reaper
    client.close()
    return {
        "requests": len(found),
        "seconds": round(time.monotonic() - begun, 1),
        "deaths": deaths,
        "whole": sum(each.status == 200 and each.done for each in found),
        "broke_off_after_the_first_byte": sum(each.status == 200 and not each.done for each in found),
        "told_so": sum(each.broke_off for each in found),
        "lost": sum(each.status != 200 for each in found),
        "lost_by_status": dict(Counter(each.status for each in found if each.status != 200)),
        "router_mib": [round(each, 1) for each in memory],
    }


def cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _children(pid: int) -> list[int]:
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (each / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid:
                    found += [int(each.name), *_children(int(each.name))]
    return found


if __name__ == "__main__":
    main()
