"""What hostile prompts cost a lookup, and what hostile clients cost memory. One process, one thread, default settings.

Each prompt is looked up several times among the donors that it was made for. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from semblend_core import DonorOffer, LookupRequest, Namespace, SemBlend, Settings, create_provider

Ids: TypeAlias = npt.NDArray[np.int32]
FIELDS: dict[str, Any] = {"model": "m", "revision": "r", "tokenizer": "t", "dtype": "d", "kv_layout": "l"}


def namespace(salt: str) -> Namespace:
    return Namespace(**FIELDS, block_size=16, adapter=None, salt=salt)


def text(seed: int, size: int) -> Ids:
    return np.random.default_rng(seed).integers(0, 50_000, size).astype(np.int32)


def cases(longest: int) -> Iterator[tuple[str, Sequence[Ids], Ids]]:
    """A name, donors and a prompt."""
    passages = [text(number, 66) for number in range(480)]
    order = np.random.default_rng(1).permutation(480)
    many = np.concatenate([np.concatenate([passages[number], text(1000 + number, 4)]) for number in order])
    yield "480 passages of 480 donors", passages, many
    yield "480 passages of one donor", [np.concatenate(passages)], many
    for period in (1, 7, 100):
        pattern = text(period, period)
        yield f"a period of {period}", [np.resize(pattern, longest // 2)] * 3, np.resize(pattern, longest)
    document = text(5, longest)
    yield "one donor, moved", [document], np.concatenate([text(6, 100), document[:-100]])
    pieces = np.random.default_rng(2).permutation(longest // 1000)
    yield "pieces of one donor", [document], np.concatenate([document[at * 1000 : (at + 1) * 1000] for at in pieces])
    yield "nothing that a donor holds", [text(100 + number, 10_000) for number in range(100)], text(7, longest)


def measure(name: str, donors: Sequence[Ids], prompt: Ids, times: int) -> dict[str, Any]:
    provider, tenant = create_provider(Settings(), engine="benchmark"), namespace("tenant")
    for number, donor in enumerate(donors):
        provider.offer_donor(DonorOffer(str(number), tenant, donor))
    found, taken = None, []
    for number in range(times):
        found = provider.lookup(LookupRequest(f"request {number}", tenant, prompt))
        taken.append(found.elapsed_us / 1000)
    assert found is not None
    budget = Settings().lookup_budget_ms * -(-prompt.size // 16_384)
    result = {
        "case": name,
        "tokens": int(prompt.size),
        "budget_ms": budget,
        "median_ms": round(statistics.median(taken), 1),
        "most_ms": round(max(taken), 1),
        "spans": None if found.plan is None else len(found.plan.spans),
        "declined": None if found.reason is None else str(found.reason),
        "index_mib": round(provider.stats().donor_bytes / 2**20, 1),
    }
    provider.close()
    return result


def flood(salts: int) -> dict[str, Any]:
    """One donor and one lookup for each salt."""
    settings = Settings(max_donors=1000)
    provider: SemBlend = create_provider(settings, engine="benchmark")
    started, most = time.perf_counter(), 0
    for number in range(salts):
        tenant = namespace(f"salt {number}")
        provider.lookup(LookupRequest(f"request {number}", tenant, text(number, 400)))
        provider.offer_donor(DonorOffer("donor", tenant, text(number, 400)))
        most = max(most, provider.stats().donor_bytes)
    result = {"salts": salts, "donors": provider.stats().donors, "most_index_mib": round(most / 2**20, 2)}
    return {**result, "ms_per_salt": round((time.perf_counter() - started) * 1e3 / salts, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--longest", type=int, default=1_000_000, help="tokens of the longest prompts")
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--salts", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.longest, options.times, options.salts = 50_000, 3, 500
    results = [measure(*case, options.times) for case in cases(options.longest)]
    for result in results:
        print(json.dumps(result), flush=True)
    print(json.dumps({"benchmark": "hostile", "lookups": results, "flood": flood(options.salts)}))


if __name__ == "__main__":
    main()
