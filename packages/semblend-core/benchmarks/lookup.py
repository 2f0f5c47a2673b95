"""Lookup: time, memory and recall of discovery and planning at 10,000 donors, with the public peer beside it.

Everything runs in this one process on one thread. Donors that fill the registry are real token ids in shuffled order:
each is unique, so the index is as large and as cold as it can get; the donors of the recall cases are real documents.
The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lookup_data.cases import Case, build_cases, oracle_positions
from lookup_data.documents import load_documents

from semblend_core import (
    DonorOffer,
    LookupRequest,
    Namespace,
    Outcome,
    OutcomeKind,
    SemBlend,
    Settings,
    create_provider,
)
from semblend_core.reference import load_default_tokenizer

PROMPT_TOKENS = 8192
DOCUMENT_TOKENS = 7900
"""Leaves room for the instructions, so that a prompt is about PROMPT_TOKENS."""

Ids = npt.NDArray[np.int32]
NAMESPACE = Namespace(
    model="smollm2",
    revision="1",
    tokenizer="smollm2",
    dtype="float32",
    kv_layout="nhd",
    block_size=16,
    adapter=None,
    salt="tenant",
)


class Texts:
    """The corpus, cut to documents of one length: some to reuse, some never registered, all tokenized once."""

    def __init__(self, folder: Path | None, cases: int) -> None:
        self._tokenizer = load_default_tokenizer()
        pool = [np.array(self.encode(text), np.int32) for text in load_documents(folder)]
        everything = np.concatenate(pool)
        documents = [ids[:DOCUMENT_TOKENS] for ids in pool if ids.size >= DOCUMENT_TOKENS]
        if len(documents) < 8:
            documents = [
                everything[i : i + DOCUMENT_TOKENS]
                for i in range(0, everything.size - DOCUMENT_TOKENS, DOCUMENT_TOKENS)
            ]
        reused = max(4, min(cases, len(documents) // 2) // 4 * 4)
        self.everything = everything
        self.reused = [self._tokenizer.decode(ids.tolist()) for ids in documents[::2][:reused]]
        self.unseen = [padded(ids, everything) for ids in documents[1::2]]

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Ids) -> str:
        return self._tokenizer.decode(ids.tolist())

    def shuffled(self, count: int, tokens: int, seed: int) -> Iterator[Ids]:
        """Unique donors with the corpus' own distribution of ids."""
        source = np.random.default_rng(seed)
        for _ in range(count):
            yield self.everything[source.integers(0, self.everything.size, tokens)]


def padded(ids: Ids, filler: Ids) -> Ids:
    """``ids`` brought to PROMPT_TOKENS with shuffled filler."""
    missing = max(0, PROMPT_TOKENS - ids.size)
    return np.concatenate([ids, np.random.default_rng(ids.size).permutation(filler)[:missing]])[:PROMPT_TOKENS]


def say(message: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {message}", flush=True)


def new_provider(**settings: Any) -> SemBlend:
    # The time limit is for engines; a benchmark wants the true time of every lookup.
    return create_provider(Settings(lookup_budget_ms=10_000.0, **settings), engine="benchmark")


def fill(provider: SemBlend, donors: Iterable[Ids], prefix: str) -> list[float]:
    """Register donors; seconds each."""
    seconds = []
    for number, ids in enumerate(donors):
        offer = DonorOffer(f"{prefix}-{number}", NAMESPACE, ids)
        started = time.perf_counter()
        kept = provider.offer_donor(offer)
        seconds.append(time.perf_counter() - started)
        assert kept.reason is None, kept
    return seconds


def look_up(provider: SemBlend, ids: Ids) -> tuple[float, Any]:
    request = LookupRequest("benchmark", NAMESPACE, ids)
    started = time.perf_counter()
    result = provider.lookup(request)
    elapsed = time.perf_counter() - started
    provider.report_outcome(Outcome("benchmark", OutcomeKind.COLD))
    return elapsed, result


def timed(provider: SemBlend, queries: list[Ids], rounds: int) -> list[float]:
    """Milliseconds of wall time per lookup over ``rounds`` lookups, queries in turn, after a warm-up."""
    for ids in queries[:20]:
        look_up(provider, ids)
    gc.collect()
    gc.disable()
    try:
        return [look_up(provider, queries[i % len(queries)])[0] * 1e3 for i in range(rounds)]
    finally:
        gc.enable()


def percentiles(milliseconds: list[float]) -> tuple[float, float]:
    return float(np.percentile(milliseconds, 50)), float(np.percentile(milliseconds, 99))


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def recall_of(cases: list[Case], texts: Texts, answer: Any) -> dict[str, float]:
    """Mean share of the oracle's tokens that ``answer(recipient ids, text)`` recovers, by kind."""
    shares: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        recipient = texts.encode(case.recipient)
        oracle = oracle_positions(recipient, [texts.encode(text) for text in case.donors.values()])
        found = np.zeros(len(recipient), np.bool_)
        for start, length in answer(recipient, case.recipient):
            found[start : start + length] = True
        shares[case.kind].append(float((found & oracle).sum() / max(1, oracle.sum())))
    return {kind: round(statistics.mean(values), 4) for kind, values in shares.items()}


def our_answer(provider: SemBlend) -> Any:
    def answer(recipient: list[int], text: str) -> list[tuple[int, int]]:
        _, result = look_up(provider, np.array(recipient, np.int32))
        return [(span.target_start, span.length) for span in result.plan.spans] if result.plan else []

    return answer


def offer_cases(provider: SemBlend, cases: list[Case], texts: Texts) -> None:
    for donor_id, text in {donor: text for case in cases for donor, text in case.donors.items()}.items():
        provider.offer_donor(DonorOffer(donor_id, NAMESPACE, np.array(texts.encode(text), np.int32)))


def measure_ours(texts: Texts, cases: list[Case], quick: bool) -> dict[str, Any]:
    donors, rounds = (1_000, 200) if quick else (10_000, 1_000)
    small, large = new_provider(), new_provider()
    fill(small, texts.shuffled(100, PROMPT_TOKENS, 1), "small")

    say(f"registering {donors} donors of {PROMPT_TOKENS} tokens")
    before = resident_bytes()
    seconds = fill(large, texts.shuffled(donors, PROMPT_TOKENS, 2), "fill")
    occupied = resident_bytes() - before
    figures: dict[str, Any] = {
        "donors": donors,
        "register_ms": round(statistics.mean(seconds) * 1e3, 4),
        "bytes_per_donor": round(large.stats().donor_bytes / donors),
        "resident_bytes_per_donor": round(occupied / donors),
    }
    say("timing misses")
    small_miss, _ = percentiles(timed(small, texts.unseen, rounds))
    miss = percentiles(timed(large, texts.unseen, rounds))
    figures |= _named("miss", miss) | {"growth_100_to_10000": round(miss[0] / small_miss, 3)}

    say("timing hits and measuring recall")
    figures |= _hits_and_recall(large, texts, cases, rounds)
    figures["false_positives"] = false_positives(large, texts.unseen)
    large.close()
    fuzzy = new_provider(fuzzy_chunks=True)
    fill(fuzzy, texts.shuffled(donors, PROMPT_TOKENS, 3), "fill")
    hits = _hits_and_recall(fuzzy, texts, cases, rounds)
    figures["with_fuzzy_chunks"] = hits | {"false_positives": false_positives(fuzzy, texts.unseen)}
    figures["recall_default_settings"] = figures["recall"]
    figures["recall"] = hits["recall"]
    fuzzy.close()
    return figures | measure_100k(texts, quick)


def _hits_and_recall(provider: SemBlend, texts: Texts, cases: list[Case], rounds: int) -> dict[str, Any]:
    offer_cases(provider, cases, texts)
    recall = recall_of(cases, texts, our_answer(provider))
    hits = [
        (case.kind, ids)
        for case in cases
        for ids in [np.array(texts.encode(case.recipient), np.int32)]
        if look_up(provider, ids)[1].plan is not None  # Without a plan there is no hit to time.
    ]
    random.Random(5).shuffle(hits)
    rounds = -(-rounds // len(hits)) * len(hits)
    milliseconds = timed(provider, [ids for _, ids in hits], rounds)
    by_kind: dict[str, list[float]] = {kind: [] for kind in recall}
    for number, elapsed in enumerate(milliseconds):
        by_kind[hits[number % len(hits)][0]].append(elapsed)
    return _named("hit", percentiles(milliseconds)) | {
        "hit_by_kind": {kind: _named("hit", percentiles(times)) for kind, times in by_kind.items() if times},
        "recall": recall,
    }


def _named(name: str, figures: tuple[float, float]) -> dict[str, float]:
    return {f"{name}_p50_ms": round(figures[0], 4), f"{name}_p99_ms": round(figures[1], 4)}


def false_positives(provider: SemBlend, unseen: list[Ids]) -> int:
    """Prompts from documents that no donor holds, with any span of 64 tokens or more."""
    results = [look_up(provider, ids)[1] for ids in unseen]
    return sum(any(span.length >= 64 for span in result.plan.spans) for result in results if result.plan)


def measure_100k(texts: Texts, quick: bool) -> dict[str, Any]:
    donors = 5_000 if quick else 100_000
    provider = new_provider(max_donors=donors, donor_index_bytes=8 * 1024**3)
    say(f"registering {donors} donors of 2048 tokens")
    fill(provider, texts.shuffled(donors, 2048, 4), "many")
    p50, p99 = percentiles(timed(provider, texts.unseen, 300))
    provider.close()
    return {"donors_of_2k": donors, "miss_p50_ms_100k": round(p50, 4), "miss_p99_ms_100k": round(p99, 4)}


def measure_peer(texts: Texts, cases: list[Case], *, tuned: bool, donors: int) -> dict[str, Any]:
    """The public peer on the same text. Times are its CPU time without embedding, which is given apart."""
    from lookup_data.peer_semblend import PeerSemblend, sentence_model

    say(f"peer semblend, {'tuned' if tuned else 'at its defaults'}, {donors} donors and those of {len(cases)} cases")
    with PeerSemblend(tuned=tuned, cache_dir=_cache(), model=sentence_model()) as peer:
        empty = peer.memory_bytes()
        registered = []
        for number, ids in enumerate(texts.shuffled(donors, PROMPT_TOKENS, 5)):
            # Embedding the whole of random filler would take hours and find nothing more.
            registered.append(peer.register(f"fill-{number}", ids.tolist(), texts.decode(ids[:200])))
        held = peer.memory_bytes()
        for donor_id, text in {d: t for case in cases for d, t in case.donors.items()}.items():
            peer.register(donor_id, texts.encode(text), text)
        gc.collect()
        gc.freeze()
        answers: list[Any] = []

        def answer(recipient: list[int], text: str) -> list[tuple[int, int]]:
            answers.append(peer.lookup(recipient, text))
            return [(start, length) for start, _, _, length in answers[-1].spans]

        recall = recall_of(cases, texts, answer)
        misses = [peer.lookup(ids.tolist(), texts.decode(ids)) for ids in texts.unseen[:8]]
        gc.unfreeze()
        embedding = [each.embed_ms for each in answers if each.embed_ms is not None]
        return {
            "version": peer.version,
            "embedder": peer.embedder,
            "donors": donors,
            "cases": len(cases),
            "register_ms": round(statistics.mean(registered), 3),
            **_named("hit", percentiles([each.cpu_ms for each in answers])),
            **_named("miss", percentiles([each.cpu_ms for each in misses])),
            "embedding_p50_ms": round(statistics.median(embedding), 1) if embedding else None,
            "bytes_per_donor": round((held - empty) / donors) if held and empty else None,
            "recall": recall,
            "false_positives": sum(any(length >= 64 for *_, length in each.spans) for each in misses),
        }


def _cache() -> Path:
    return Path(os.environ.get("SEMBLEND_MODEL_CACHE") or Path.home() / ".cache" / "semblend")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with text: *.jsonl meetings, *.rst papers, SQuAD *.json (default: the standard library's sources)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the donors: for trying the script, not for figures"
    )
    parser.add_argument("--no-peer", action="store_true", help="leave the public peer out")
    parser.add_argument("--cases", type=int, default=24, help="documents to vary (default 24)")
    parser.add_argument("--peer-donors", type=int, default=500, help="donors the peer is filled with (default 500)")
    options = parser.parse_args()

    texts = Texts(options.data, 8 if options.quick else options.cases)
    cases = build_cases(texts.reused)
    say(
        f"{len(texts.reused)} documents reused, {len(texts.unseen)} unseen, {len(cases)} cases, "
        f"text from {options.data or 'the standard library'}"
    )
    figures = measure_ours(texts, cases, options.quick)
    if not options.no_peer:
        peer_donors = 20 if options.quick else options.peer_donors
        peer_cases = build_cases(texts.reused[: 4 if options.quick else 8])
        figures["peer_default"] = measure_peer(texts, peer_cases, tuned=False, donors=peer_donors)
        figures["peer_tuned"] = measure_peer(texts, peer_cases, tuned=True, donors=peer_donors)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
