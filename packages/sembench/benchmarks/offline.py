"""Offline metrics: wall time of a manifest of 1,000 items at 8K tokens, tokenizing included.

The items are made in memory before the clock starts; reading and checking their JSON lines, tokenizing, offering,
looking up, counting and writing the result are timed. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sembench.identity import identify, load_manifest
from sembench.offline.providers import ProviderOptions, open_provider
from sembench.offline.replay import replay_offline
from sembench.offline.result import offline_result
from sembench.schema import DonorPrompt, ManifestItem, write_atomically
from sembench.tokenization import load_tokenizer

VOCABULARY = """
the invoice for last quarter was paid twice and support asked whether billing could refund one of them before Friday
since another server in rack seven reported errors after its firmware update while engineers compared logs from both
regions under clause nine no supplier may share measured latency figures without written consent
"""
WORDS = VOCABULARY.split()
TRANSFORMS = ("instruction_variant", "rag_reorder", "multi_donor_composite", "sparse_edit", "negative_control")


def sentence(draw: random.Random) -> str:
    words = [draw.choice(WORDS) for _ in range(draw.randint(8, 20))]
    return " ".join([*words, f"{draw.choice('ABCDEFGH')}{draw.randrange(10**6)}"]).capitalize() + "."


def paragraphs(draw: random.Random, tokens: int) -> list[str]:
    """Four parts that are together about ``tokens`` tokens of SmolLM2 long."""
    parts: list[str] = []
    for _ in range(4):
        sentences: list[str] = []
        while sum(len(each) + 1 for each in sentences) < tokens / 4 * 4.27:
            sentences.append(sentence(draw))
        parts.append(" ".join(sentences))
    return parts


def make_item(number: int, tokens: int) -> ManifestItem:
    draw = random.Random(number)
    transform = TRANSFORMS[number % len(TRANSFORMS)]
    parts = paragraphs(draw, tokens)
    donors, recipient = ["Summarise:\n" + "\n\n".join(parts)], "Answer in one sentence.\n" + "\n\n".join(parts)
    if transform == "rag_reorder":
        recipient = "Answer:\n" + "\n\n".join(reversed(parts))
    elif transform == "multi_donor_composite":
        donors = [f"Record {place}:\n{part}" for place, part in enumerate(parts)]
    elif transform == "sparse_edit":
        edited = [sentence(draw) if draw.random() < 0.04 else each for each in recipient.split(". ")]
        recipient = ". ".join(edited)
    elif transform == "negative_control":
        donors = ["Summarise:\n" + "\n\n".join(paragraphs(draw, tokens))]
    return ManifestItem(
        item_id=name_of("item", number),
        dataset="benchmark",
        source_id=str(number),
        transform=transform,
        donor_prompts=tuple(
            DonorPrompt(donor_id=name_of("donor", number, place), text=text, label=transform)
            for place, text in enumerate(donors)
        ),
        recipient_prompt=recipient,
        input="",
        answers=(),
        negative_control=transform == "negative_control",
    )


def name_of(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def manifest_lines(items: int, tokens: int) -> Iterator[str]:
    for number in range(items):
        yield make_item(number, tokens).model_dump_json() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000, help="items of the manifest (default 1000)")
    parser.add_argument("--tokens", type=int, default=8_192, help="tokens of a prompt, about (default 8192)")
    parser.add_argument("--tokenizer", default="smollm2", help="as for run-offline (default smollm2)")
    parser.add_argument("--provider", default="core", help="as for run-offline (default core)")
    parser.add_argument("--fuzzy", action="store_true", help="core with SEMBLEND_FUZZY_CHUNKS")
    parser.add_argument("--quick", action="store_true", help="50 items: for trying the script, not for figures")
    options = parser.parse_args()
    count = 50 if options.quick else options.items

    tokenizer = load_tokenizer(options.tokenizer)  # May download: before the clock starts.
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "manifest.jsonl"
        write_atomically(manifest, "".join(manifest_lines(count, options.tokens)))
        provider, describe = open_provider(options.provider, ProviderOptions(fuzzy=options.fuzzy or None))
        started = time.perf_counter()
        items = load_manifest(manifest)
        read = time.perf_counter()
        run = replay_offline(items, tokenizer, provider)
        replayed = time.perf_counter()
        identity = identify("offline", manifest, len(items))
        result = offline_result(identity, {"provider": describe()}, items, run, 16, shared_pool=False)
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
