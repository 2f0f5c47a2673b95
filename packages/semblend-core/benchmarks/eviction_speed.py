"""Eviction speed: accesses per second and bytes per held key of every policy, and how both grow.

Keys are drawn with few that are popular and many that come once, and a tenth of them fits. One thread, in this
process. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tracemalloc
from typing import Any

import numpy as np

from semblend_core.eviction import POLICY_NAMES, Entry, EvictionPolicy, policy_named

KINDS = ("system", "user", "retrieved_context", "other")
ENTRIES = [Entry(tokens=512, kind=kind, saved_ms=41.0, prompt_tokens=8192, position=1024) for kind in KINDS]


def main(arguments: list[str]) -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--accesses", type=int, nargs="+", default=[1_000_000, 10_000_000])
    options.add_argument("--policies", nargs="+", default=list(POLICY_NAMES), choices=POLICY_NAMES)
    options.add_argument("--quick", action="store_true", help="20,000 and 40,000 accesses")
    asked = options.parse_args(arguments)
    sizes = [20_000, 40_000] if asked.quick else asked.accesses
    figures: dict[str, Any] = {}
    for name in asked.policies:
        figures[name] = [measure(name, accesses) for accesses in sizes]
        for row in figures[name]:
            print(
                f"{name:18} {row['accesses']:>11,} accesses in {row['seconds']:7.2f} s "
                f"({row['microseconds']:.2f} us each), {row['held']:,} held, {row['ghosts']:,} remembered",
                flush=True,
            )
        figures[name][0]["bytes_per_key"] = bytes_per_key(name, min(sizes[0], 200_000))
    print(json.dumps({"benchmark": "eviction_speed", "policies": figures}))


def measure(name: str, accesses: int) -> dict[str, Any]:
    keys, capacity = draw(accesses)
    policy = policy_named(name, capacity=capacity)
    began = time.process_time()
    hits = replay(policy, keys, capacity)
    seconds = time.process_time() - began
    return {
        "accesses": accesses,
        "seconds": round(seconds, 3),
        "microseconds": round(seconds / accesses * 1e6, 3),
        "hit_ratio": round(hits / accesses, 4),
        "held": len(policy),
        "ghosts": policy.ghosts,
    }


def bytes_per_key(name: str, accesses: int) -> float:
    """Ghosts and tables included."""
    keys, capacity = draw(accesses)
    tracemalloc.start()
    policy = policy_named(name, capacity=capacity)
    replay(policy, keys, capacity)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return round(taken / len(policy), 1)


def draw(accesses: int) -> tuple[list[int], int]:
    random = np.random.default_rng(1)
    popular = random.zipf(1.2, accesses) % accesses
    once = np.arange(accesses, 2 * accesses)
    keys = np.where(random.random(accesses) < 0.5, popular, once)
    return keys.tolist(), max(10, np.unique(keys).size // 10)


def replay(policy: EvictionPolicy[Any], keys: list[int], capacity: int) -> int:
    hits = 0
    held = policy.entries
    for number, key in enumerate(keys):
        if key in held:
            hits += 1
            policy.touch(key, number / 100)
        elif policy.admit(key, ENTRIES[key % 4], number / 100):
            while policy.held > capacity:
                policy.remove(policy.victim(key.__eq__))
    return hits


if __name__ == "__main__":
    main(sys.argv[1:])
