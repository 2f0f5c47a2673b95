"""What the load generator itself adds to TTFT, with 200 streams in flight against a stub that stamps its own times.

The stub runs in a process of its own. It writes into the first event when it received the request and when it sent the
event; both processes read the same monotonic clock. The distortion of a request is the TTFT that the generator measured
less the time between these two stamps: sending, the network on one machine, and the generator's own delays.

``--client httpx`` measures the same with a plain httpx stream, to show why the generator does not use one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass

from sembench.load.client import LoadClient, Target
from sembench.load.loops import PromptMix, closed_loop
from sembench.load.point import Percentiles
from sembench.load.stub import MODEL
from sembench.load.watch import Watch, undisturbed
from sembench.schema import ManifestItem

LIMIT_MS = 5.0


@dataclass(frozen=True)
class Timing:
    """Of one request, in seconds: as the client saw it, and as the server did."""

    begun: float
    first_token: float
    received: float
    sent: float

    @property
    def distortion(self) -> float:
        return (self.first_token - self.begun) - (self.sent - self.received)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds instead of twenty")
    parser.add_argument("--in-flight", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--prompt-words", type=int, default=1500)
    parser.add_argument("--client", choices=("generator", "httpx"), default="generator")
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="run before all other processes (root): on a busy machine they count too",
    )
    options = parser.parse_args()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
    seconds = 4.0 if options.quick else options.seconds
    measure = with_generator if options.client == "generator" else with_httpx

    stub = subprocess.Popen(
        [sys.executable, "-m", "sembench.load.stub", "--first-token-s", "0.2", "--between-tokens-s", "0.05"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert stub.stdout is not None
    url = f"http://127.0.0.1:{int(stub.stdout.readline())}"
    used = time.process_time()
    timings = asyncio.run(measure(url, options.in_flight, seconds, options.prompt_words))
    used = time.process_time() - used
    counted, _ = stub.communicate()
    report(options, timings, json.loads(counted), used)


def report(options: argparse.Namespace, timings: list[Timing], counted: dict[str, int], cpu_s: float) -> None:
    total = Percentiles.of(1000 * timing.distortion for timing in timings)
    outward = Percentiles.of(1000 * (timing.received - timing.begun) for timing in timings)
    back = Percentiles.of(1000 * (timing.first_token - timing.sent) for timing in timings)
    for name, spread in (("distortion", total), ("to the server", outward), ("from the server", back)):
        print(
            f"{name:16} p50 {spread.p50:7.2f}  p95 {spread.p95:7.2f}  p99 {spread.p99:7.2f}  max {spread.max:7.2f} ms"
        )
    result = {
        "client": options.client,
        "realtime": options.realtime,
        "in_flight": counted["in_flight_max"],
        "requests": len(timings),
        "distortion_ms": {name: round(getattr(total, name), 3) for name in ("p50", "p95", "p99", "max")},
        "to_server_ms_p99": round(outward.p99 or 0.0, 3),
        "from_server_ms_p99": round(back.p99 or 0.0, 3),
        "within_5_ms_p99": total.p99 is not None and total.p99 <= LIMIT_MS,
        "generator_cpu_s": round(cpu_s, 2),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(result))
    if not options.quick and not result["within_5_ms_p99"]:
        sys.exit(f"missed: the 99th percentile of the distortion is more than {LIMIT_MS:g} ms on this machine")


async def with_generator(url: str, in_flight: int, seconds: float, words: int) -> list[Timing]:
    """The closed loop as run-load runs it."""
    client = LoadClient(Target(url, MODEL))
    await client.open_connections(in_flight)
    start = time.monotonic() + 3.0
    watch = Watch(start, start + seconds, hopeless_after=in_flight)
    with undisturbed():
        await closed_loop(client, PromptMix([_item(words)], 0.0, seed=1), watch, in_flight)
    client.close()
    answers = [answer for answer in watch.answers if watch.counts(answer.due)]
    failed = [answer for answer in answers if answer.error]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(answers)} failed: {failed[0].error}: {failed[0].detail}")
    return [Timing(answer.due, answer.token_at[0], *stamps(answer.first_event)) for answer in answers]


async def with_httpx(url: str, in_flight: int, seconds: float, words: int) -> list[Timing]:
    import httpx

    timings: list[Timing] = []
    start = time.monotonic() + 3.0
    prompt = _item(words).recipient_prompt
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 64, "stream": True}

    async def worker(client: httpx.AsyncClient, number: int) -> None:
        await asyncio.sleep(1.5 * number / in_flight)
        while time.monotonic() < start + seconds:
            begun, first, event = time.monotonic(), 0.0, b""
            async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
                async for piece in response.aiter_raw():
                    if not event:
                        first, event = time.monotonic(), piece.partition(b"data: ")[2].partition(b"\n")[0]
            if begun >= start:
                timings.append(Timing(begun, first, *stamps(event)))

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=in_flight)
    async with httpx.AsyncClient(limits=limits, timeout=120) as client:
        with undisturbed():
            await asyncio.gather(*(worker(client, number) for number in range(in_flight)))
    return timings


def stamps(event: bytes) -> tuple[float, float]:
    received, sent = json.loads(event)["stub"]
    return received, sent


def _item(words: int) -> ManifestItem:
    text = " ".join(random.Random(1).choices([f"word{n}" for n in range(2000)], k=words))
    return ManifestItem(
        item_id="0" * 16,
        dataset="stub",
        source_id="1",
        transform="exact_repeat",
        donor_prompts=(),
        recipient_prompt=text,
        input="",
        answers=(),
        negative_control=False,
    )


if __name__ == "__main__":
    main()
