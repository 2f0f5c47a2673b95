"""Many mixed requests in one engine: whatever they leave behind shows.

They come in rounds. After each, when nobody is served, what the engine and SemBlend hold is counted: KV of requests,
pinned donors, open requests, SemBlend's own books, memory and open files of the processes. Books and caches fill in
the first rounds; from the middle on nothing may grow. An engine may grow by itself, so the same requests can be served
by the stock engine first, and memory is held against that.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from semblend_core.testing.benchmarks import traffic
from semblend_core.testing.benchmarks.checked import file_to_read, folder_to_write, positive, why_too_long
from semblend_core.testing.benchmarks.engine import Answer, EngineUnderTest
from semblend_core.testing.benchmarks.prompts import Prompts
from semblend_core.testing.benchmarks.script import as_text
from semblend_core.testing.benchmarks.traffic import Asked, MixedTraffic
from semblend_core.testing.growth import grown

SALT = "endurance"
MOST_GROWTH = 0.05
"""Of memory, from the middle of the run to its end, beyond what the stock engine grows by."""
STILL_FILLING = ("HotOpenings.", "Opening.", "_Asked.", "LineageBook.", "RegretLedger.", "_Gone.", "Ranking._heap")
"""Books that remember up to a bound which 10,000 requests do not reach. Tests fill them, with lower bounds. A ranking
keeps outdated places until they are half of its heap."""
STRAY_FILES = 4
"""Open files that may be there by chance: a donor that is being read, a log that is rotated."""


@dataclass(frozen=True)
class Held:
    """By an engine that serves nobody."""

    kv_tokens: int
    """Of requests; what is only cached does not count."""
    pinned_requests: int
    open_requests: int
    books: Counter[str]
    """Sizes of SemBlend's own containers."""


class CountedEngine(EngineUnderTest, Protocol):
    def held(self) -> Held: ...

    def close(self) -> None: ...


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=positive, default=10_000)
    parser.add_argument("--rounds", type=positive, default=10)
    parser.add_argument("--in-flight", type=positive, default=8)
    parser.add_argument("--shortest", type=positive, default=128, help="tokens of a prompt")
    parser.add_argument("--longest", type=positive, default=512)
    parser.add_argument("--output-tokens", type=positive, default=4)
    parser.add_argument("--store-bytes", default="64MiB", help="donors in host memory: few, so that they come and go")
    parser.add_argument("--disk-bytes", default="256MiB", help="donors on disk")
    parser.add_argument("--disk", type=folder_to_write, required=True, help="an empty folder for them")
    parser.add_argument("--beside", type=file_to_read, help="what --json wrote with --stock: memory is held against it")


def why_not(options: argparse.Namespace) -> str | None:
    """Why a run with these could not work, in words that name the option."""
    if options.rounds < 2 or options.rounds > options.requests:
        return f"--rounds {options.rounds}: they go from the middle to the end of --requests {options.requests}"
    no_traffic = traffic.why_not(options.shortest, options.longest, options.output_tokens)
    return no_traffic or why_too_long(options.longest, options)


def set_up(options: argparse.Namespace) -> None:
    """Before the engine is made: donors go from host memory to disk, and from there away. All that can be is reused."""
    os.environ.update(
        SEMBLEND_COST_GATE="0",
        SEMBLEND_STORE_HOST_BYTES=options.store_bytes,
        SEMBLEND_STORE_DISK_BYTES=options.disk_bytes,
        SEMBLEND_STORE_DISK_PATH=str(options.disk),
    )


def run(engine: CountedEngine, prompts: Prompts, options: argparse.Namespace) -> dict[str, Any]:
    length = (options.output_tokens, options.output_tokens)
    limits = {"shortest": options.shortest, "longest": options.longest, "output_tokens": length}
    asked = MixedTraffic(prompts, seed=options.seed, **limits).requests(options.requests)
    served: list[list[int]] = []
    answers: list[Answer] = []
    counts: list[dict[str, Any]] = []
    books: list[Counter[str]] = []
    began = time.perf_counter()
    for batch in batches(asked, options.in_flight):
        texts = [([] if each.continues is None else served[each.continues]) + each.prompt.tolist() for each in batch]
        said = engine.ask(texts, salt=SALT, output_tokens=options.output_tokens)
        served += [text + list(answer.tokens) for text, answer in zip(texts, said, strict=True)]
        answers += said
        if len(answers) * options.rounds >= (len(counts) + 1) * len(asked):
            engine.settle()
            held = engine.held()
            books.append(held.books)
            counts.append(_count(held, len(answers), time.perf_counter() - began))
            print(f"{len(answers)} of {len(asked)}: {counts[-1]}", flush=True)
    reused = engine.confirmed_tokens()
    outcomes = engine.outcomes(answers)
    name = engine.name
    engine.close()
    result: dict[str, Any] = {"engine": name, "options": as_text(options), "rounds": counts, "reused_tokens": reused}
    result |= {"outcomes": dict(outcomes), "books": {place: [each[place] for each in books] for place in books[-1]}}
    beside = [] if options.beside is None else json.loads(options.beside.read_text())["rounds"]
    result["fails"] = judge(counts, books, beside)
    print(f"{'FAILS' if result['fails'] else 'holds'}: {'; '.join(result['fails']) or 'nothing grows'}", flush=True)
    return result


def batches(asked: Sequence[Asked], most: int) -> Iterator[list[Asked]]:
    """In their order; what goes on from a request is asked for after it was answered."""
    begin = 0
    for place, each in enumerate(asked):
        if place - begin == most or (each.continues is not None and each.continues >= begin):
            yield list(asked[begin:place])
            begin = place
    yield list(asked[begin:])


def judge(
    counts: Sequence[dict[str, Any]], books: Sequence[Counter[str]], beside: Sequence[dict[str, Any]] = ()
) -> list[str]:
    """What has grown from the middle of the run to its end, in words."""
    middle, last = counts[len(counts) // 2 - 1], counts[-1]
    fails = []
    for name in ("kv_tokens", "pinned_requests", "open_requests"):
        found = [each[name] for each in counts]
        if any(found):
            fails.append(f"{name} of an engine that serves nobody: {found}")
    by_itself = beside[-1]["memory_mib"] - beside[len(beside) // 2 - 1]["memory_mib"] if beside else 0
    if last["memory_mib"] - middle["memory_mib"] > by_itself + MOST_GROWTH * middle["memory_mib"]:
        fails.append(f"memory: {middle['memory_mib']} to {last['memory_mib']} MiB, the stock engine's by {by_itself}")
    if last["files"] > middle["files"] + STRAY_FILES:
        fails.append(f"open files: {middle['files']} to {last['files']}")
    more = grown(books[len(books) // 2 - 1], books[-1]).items()
    return fails + [f"{place}: {then} to {now}" for place, (then, now) in more if not place.startswith(STILL_FILLING)]


def _count(held: Held, requests: int, seconds: float) -> dict[str, Any]:
    processes = list(_family(os.getpid()))
    return {
        "requests": requests,
        "seconds": round(seconds),
        "kv_tokens": held.kv_tokens,
        "pinned_requests": held.pinned_requests,
        "open_requests": held.open_requests,
        "memory_mib": sum(map(_resident, processes)) >> 20,
        "files": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in processes),
    }


def _family(pid: int) -> Iterator[int]:
    """This process and all that it has started."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _family(int(child))


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
