"""Offline metrics: wall time of a manifest of 1,000 items at 8K tokens, tokenizing included.

The items are those of synthetic-v1, written to a file before the clock starts. Reading and checking it, tokenizing,
offering, looking up, counting and writing the result are timed. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from sembench.identity import identify, load_manifest
from sembench.manifests import build_synthetic
from sembench.offline.providers import ProviderOptions, open_provider
from sembench.offline.replay import replay_offline
from sembench.offline.result import build_offline_result
from sembench.schema import write_atomically
from sembench.tokenization import load_tokenizer

PER_SOURCE = 3 * 13
"""Items of one source in each of the three domains, with all thirteen transforms, at the least."""
LIMIT_S = 120
"""Two cores should do a thousand items of 8K tokens in this."""


def make_manifest(path: Path, items: int, tokens: int) -> None:
    built = build_synthetic(seed=1, bands_tokens=(tokens,), sources_per_band=-(-items // PER_SOURCE))
    write_atomically(path, "".join(item.model_dump_json() + "\n" for item in built[:items]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000, help="items of the manifest (default 1000)")
    parser.add_argument("--tokens", type=int, default=8_000, help="tokens of a prompt, about (default 8000)")
    parser.add_argument("--tokenizer", default="smollm2", help="as for run-offline (default smollm2)")
    parser.add_argument("--provider", default="core", help="as for run-offline (default core)")
    parser.add_argument("--fuzzy", action="store_true", help="core with SEMBLEND_FUZZY_CHUNKS")
    parser.add_argument("--quick", action="store_true", help="50 items: for trying the script, not for figures")
    options = parser.parse_args()
    count = 50 if options.quick else options.items

    tokenizer = load_tokenizer(options.tokenizer)  # May download: before the clock starts.
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "manifest.jsonl"
        make_manifest(manifest, count, options.tokens)
        provider, describe = open_provider(options.provider, ProviderOptions(fuzzy=options.fuzzy or None))
        started = time.perf_counter()
        items = load_manifest(manifest)
        read = time.perf_counter()
        run = replay_offline(items, tokenizer, provider)
        replayed = time.perf_counter()
        identity = identify("offline", manifest, len(items))
        result = build_offline_result(identity, {"provider": describe()}, items, run, 16, shared_pool=False)
        write_atomically(Path(folder) / "result.json", result.model_dump_json(indent=1))
        ended = time.perf_counter()
        provider.close()
    prompts = [record.prompt_tokens or 0 for record in run.records]
    rates = {name: summary.aggregate.semantic_eligible_block_rate for name, summary in result.by_transform.items()}
    figures = {
        "items": count,
        "mean_recipient_tokens": round(sum(prompts) / len(prompts)),
        "tokenizer": tokenizer.name,
        "provider": options.provider,
        "seconds": round(ended - started, 2),
        "read_s": round(read - started, 2),
        "replay_s": round(replayed - read, 2),
        "result_s": round(ended - replayed, 2),
        "lookup_us": result.aggregate.lookup_us,
        "failed": result.aggregate.requests_failed,
        "eligible_block_rate": {name: rate and rate.value and round(rate.value, 4) for name, rate in rates.items()},
    }
    print(json.dumps(figures))
    if not options.quick and figures["seconds"] > LIMIT_S:
        print(f"missed: {figures['seconds']} s for {count} items, more than {LIMIT_S}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
