"""Kill a process that writes donors, again and again, and look at what the next one finds.

    python packages/semblend-core/benchmarks/store_crash.py --kills 200

A forked child puts donors into a store with a disk tier and says over a pipe, from ``on_durable``, which are durable.
The parent kills it (SIGKILL) at a random moment, opens the store again, and reads everything: each acknowledged donor
must be there, and each donor found must hold, bit for bit, what was put. Ends with status 1 otherwise. Prints JSON.

SIGKILL ends a process, not the machine: what the kernel has taken survives it. Power cuts are what the fsyncs are for.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from semblend_core import Namespace
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store import DonorStore, StoreOptions

NAMESPACE = Namespace(
    model="crash",
    revision="1",
    tokenizer="none",
    dtype="bfloat16",
    kv_layout="nhd",
    block_size=1,
    adapter=None,
    salt="tenant",
)
ROUNDS_PER_FOLDER = 5
TOKENS = (3, 40, 150, 400, 1500)
"""12 KiB to 6 MiB per donor, so that kills fall into writing, syncing and renaming alike."""


@dataclass
class Report:
    kills: int = 0
    acknowledged: int = 0
    """Donors that the child called durable before it was killed."""
    found_again: int = 0
    """Of those, found with the right contents."""
    missing: int = 0
    found_beyond: int = 0
    """Found though no longer acknowledged: durable, and killed before it was said."""
    corrupt_served: int = 0
    """Donors handed out with wrong bytes, tokens or position."""
    killed_while_writing: int = 0
    """Kills that left a temporary file, or data without metadata."""
    quarantined: Counter[str] = field(default_factory=Counter)
    failed_loads: Counter[str] = field(default_factory=Counter)
    verified_bytes: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not (self.missing or self.corrupt_served or self.failed_loads) and self.found_again == self.acknowledged


def contents(number: int) -> DonorKv:
    """Donor ``number``, the same in every process. 8 layers."""
    tokens = TOKENS[number % len(TOKENS)]
    # Multiplying by a large odd number scatters the bits; no two donors are alike anywhere.
    scattered = (torch.arange(2 * 8 * tokens * 2 * 16) + number * 1_000_003) * -7046029254386353131
    raw = scattered.view(2, 8, tokens, 2, 16).view(torch.bfloat16)
    return DonorKv(raw[0], raw[1], first_position=number)


def open_store(folder: Path) -> DonorStore:
    options = StoreOptions(host_bytes=0, disk_bytes=16 * 1024**3, disk_path=folder, queue_depth=4)
    return DonorStore(options, device="cpu")


def write_until_killed(folder: Path, first: int, pipe: int) -> None:
    def acknowledge(donor_id: str) -> None:
        os.write(pipe, f"{donor_id}\n".encode())

    store = open_store(folder)
    for number in range(first, first + 100_000):
        kv = contents(number)
        ids = range(number, number + kv.tokens)
        while not store.put(NAMESPACE, str(number), kv, token_ids=ids, on_durable=acknowledge).accepted:
            time.sleep(0.001)


def run_and_kill(folder: Path, first: int, lifetime: float) -> list[int]:
    """The donors that the child acknowledged."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            write_until_killed(folder, first, writer)
        finally:
            os._exit(3)  # Not reached unless something is wrong.
    os.close(writer)
    time.sleep(lifetime)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status), f"the child ended by itself: {status}"
    with os.fdopen(reader) as pipe:
        return [int(line) for line in pipe.read().split("\n") if line]


def check(folder: Path, acknowledged: set[int], report: Report) -> int:
    """Read everything that a new process finds. The largest donor number found."""
    with open_store(folder) as store:
        found = {int(donor.donor_id): donor for donor in store.recover()}
        good = 0
        for number, donor in found.items():
            handle = store.acquire(NAMESPACE, donor.donor_id)
            if handle is None:
                continue
            with handle:
                transfer = store.load(handle)
                try:
                    (part,) = transfer.result(60)
                except Exception:
                    report.failed_loads[str(transfer.failed)] += 1
                    continue
            ids = None if donor.token_ids is None else donor.token_ids.tolist()
            if is_right(number, part, ids):
                good += number in acknowledged
                report.verified_bytes += part.nbytes
            else:
                report.corrupt_served += 1
        report.acknowledged += len(acknowledged)
        report.found_again += good
        report.missing += len(acknowledged - found.keys())
        report.found_beyond += len(found.keys() - acknowledged)
        report.quarantined.update({str(reason): count for reason, count in store.stats().quarantined.items()})
        store.check_integrity()
    return max(found, default=0)


def is_right(number: int, part: DonorKv, ids: list[int] | None) -> bool:
    expected = contents(number)
    assert part.values is not None
    assert expected.values is not None
    return (
        part.first_position == number
        and ids == list(range(number, number + expected.tokens))
        and torch.equal(part.keys.view(torch.uint8), expected.keys.view(torch.uint8))
        and torch.equal(part.values.view(torch.uint8), expected.values.view(torch.uint8))
    )


def unfinished(folder: Path) -> bool:
    names = [path.name for path in (folder / "donors").glob("*")]
    data = {name.removesuffix(".safetensors") for name in names if name.endswith(".safetensors")}
    described = {name.removesuffix(".json") for name in names if name.endswith(".json")}
    return data != described or any(name.endswith(".partial") for name in names)


def measure(kills: int, seed: int, folder: Path, most_seconds: float) -> Report:
    dice, report, started = random.Random(seed), Report(), time.monotonic()
    acknowledged: set[int] = set()
    next_number = 1
    before = Report()
    while report.kills < kills and time.monotonic() - started < most_seconds:
        if report.kills % ROUNDS_PER_FOLDER == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            acknowledged, before = set(), Report(**{**asdict(report)})
        acknowledged.update(run_and_kill(folder, next_number, dice.uniform(0.01, 0.3)))
        report.kills += 1
        report.killed_while_writing += unfinished(folder)
        # The folder's tally is taken anew each time: every kill must keep what the earlier ones left.
        report.acknowledged, report.found_again, report.found_beyond = (
            before.acknowledged,
            before.found_again,
            before.found_beyond,
        )
        found = check(folder, acknowledged, report)
        next_number = max(found, next_number, *acknowledged, 0) + 10
    report.seconds = round(time.monotonic() - started, 1)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="10 kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-seconds", type=float, default=175.0, help="stop before the last kill when over this")
    parser.add_argument("--folder", type=Path, help="on the file system to test; default: a temporary folder")
    arguments = parser.parse_args()
    kills = 10 if arguments.quick else arguments.kills
    torch.set_num_threads(1)  # No threads may be there when the writer is forked.
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        report = measure(kills, arguments.seed, Path(folder) / "kv", arguments.most_seconds)
    print(json.dumps({**asdict(report), "passed": report.passed}))
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
