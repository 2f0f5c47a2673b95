"""Recall: what lookups find of what brute force finds, where prompts and donors are full of repeats and near-copies.

Each prompt holds ten passages of real text, some twice and some with a few words changed; its donors are earlier
prompts of the same kind. Recall is the share of the best possible cover by runs of the minimum span that the plan
covers. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from lookup_data.documents import load_documents
from lookup_data.near_copies import Encode, Workload, build_workload, most_reusable

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

NAMESPACE = Namespace(
    model="m", revision="1", tokenizer="t", dtype="float32", kv_layout="nhd", block_size=16, adapter=None, salt="tenant"
)


def found_by_lookup(provider: SemBlend, workload: Workload, namespace: Namespace) -> tuple[int, float]:
    """Tokens that the plan covers, and the milliseconds of the lookup."""
    for number, donor in enumerate(workload.donors):
        kept = provider.offer_donor(DonorOffer(f"donor-{number}", namespace, donor))
        assert kept.reason is None, kept
    provider.lookup(LookupRequest("warm-up", namespace, workload.prompt))
    started = time.perf_counter()
    plan = provider.lookup(LookupRequest("asked", namespace, workload.prompt)).plan
    elapsed = time.perf_counter() - started
    for request_id in ("warm-up", "asked"):
        provider.report_outcome(Outcome(request_id, OutcomeKind.COLD))
    return (sum(span.length for span in plan.spans) if plan else 0), elapsed * 1e3


def word_encoder() -> Encode:
    """Words, spaces and marks as tokens: about as long as real ones, and nothing to download."""
    known: dict[str, int] = {}
    return lambda text: [known.setdefault(piece, len(known)) for piece in re.findall(r" ?\w+|\s+|[^\w\s]", text)]


def model_encoder() -> Encode:
    from semblend_core.reference import load_default_tokenizer

    tokenizer = load_default_tokenizer()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with real text, as for lookup.py")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first prompt")
    parser.add_argument("--words", action="store_true", help="words as tokens, instead of SmolLM2's tokenizer")
    options = parser.parse_args()

    settings = Settings(lookup_budget_ms=10_000.0)  # Recall, not the time limit, is asked about.
    provider = create_provider(settings, engine="benchmark")
    documents, encode = load_documents(options.data), word_encoder() if options.words else model_encoder()
    recalls, times, sizes = [], [], []
    for seed in range(options.seed, options.seed + options.prompts):
        workload = build_workload(documents, seed, encode)
        most = most_reusable(workload.prompt, workload.donors, settings.min_span_tokens)
        found, milliseconds = found_by_lookup(provider, workload, replace(NAMESPACE, salt=str(seed)))
        recalls.append(found / max(1, most))
        times.append(milliseconds)
        sizes.append(workload.prompt.size)
        if recalls[-1] < 0.98:
            print(f"prompt {seed}: {found} of {most} tokens, {len(workload.donors)} donors", flush=True)
    provider.close()
    figures = {
        "prompts": len(recalls),
        "prompt_tokens_mean": round(float(np.mean(sizes))),
        "recall_worst": round(min(recalls), 4),
        "recall_mean": round(float(np.mean(recalls)), 4),
        "below_0.98": sum(recall < 0.98 for recall in recalls),
        "lookup_p50_ms": round(float(np.percentile(times, 50)), 3),
        "lookup_max_ms": round(max(times), 3),
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
