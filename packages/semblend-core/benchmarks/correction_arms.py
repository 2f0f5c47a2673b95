"""Ways to choose rows and to correct the rest, side by side on one model: many passages, a few minutes on a GPU.

Composites (each passage from another donor) and reorders (all from one), at one budget, against cold prefill. Probes
are charged as in engines, which cannot stop at a layer. The quality study (quality.py) is the larger one; this one is
for trying things out.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from lookup_data.documents import default_folder
from quality_data.sources import Passage, Sources
from tokenizers import Tokenizer

from semblend_core import Plan, Span
from semblend_core.kv.learned_shift import LearnedShift
from semblend_core.recompute import (
    ROW_SHIFT,
    Corrected,
    KVDeviation,
    MeanShift,
    Oracle,
    QueryAttention,
    RecomputePolicy,
    RotateOnly,
    SeamHead,
    choose_policy,
)
from semblend_core.reference import ReferenceEngine, default_model_folder, prefill_reusing

INSTRUCTION = "Answer from the passages only, in at most three sentences.\n\n"
OTHER_INSTRUCTION = "You help a colleague who has little time. Read the passages, then answer.\n\n"
NEIGHBOURS = 3
"""Passages that a composite's donor holds beside the one that is wanted."""


@dataclass(frozen=True)
class Case:
    kind: str
    donors: dict[str, list[int]]
    recipient: list[int]
    spans: list[Span]


def arms(plan: Plan, budget: float, learned: bool) -> dict[str, tuple[RecomputePolicy, float]]:
    """By name: the policy, and what it may spend."""
    fast, balanced, unprobed = (
        choose_policy(tier, plan, probing=probing)
        for tier, probing in (("fast", True), ("balanced", True), ("balanced", False))
    )
    assert fast is not None
    assert balanced is not None
    assert unprobed is not None
    unfitted = replace(ROW_SHIFT, learned=False)
    made: dict[str, tuple[RecomputePolicy, float]] = {
        "rotate_only": (RotateOnly(), 0.0),
        "fast": (fast.policy, fast.budget),
        "CacheBlend's rule": (KVDeviation(), budget),
        "EPIC's rule": (SeamHead(), budget),
        "mean attention + mean shift": (Corrected(QueryAttention(seam=16)), budget),
        "long seams + mean shift": (Corrected(SeamHead()), budget),
        "balanced": (_corrected(balanced.policy, unfitted), budget),
        "balanced, unprobed": (_corrected(unprobed.policy, unfitted), budget),
        "oracle + row shift": (Corrected(Oracle(), unfitted), budget),
    }
    if learned:
        made["balanced, fitted"] = (_corrected(balanced.policy, ROW_SHIFT), budget)
        made["balanced, unprobed, fitted"] = (_corrected(unprobed.policy, ROW_SHIFT), budget)
    return made


def _corrected(policy: RecomputePolicy, shift: MeanShift) -> RecomputePolicy:
    return Corrected(policy.rows, shift) if isinstance(policy, Corrected) else policy


class Cases:
    def __init__(self, folder: Path, tokenizer: Tokenizer, tokens: int, passages: int) -> None:
        self._tokenizer = tokenizer
        found = Sources(folder, self._encode).passages(tokens // passages)
        self._groups = [found[at : at + passages] for at in range(0, len(found) - passages + 1, passages)]
        if len(self._groups) < 2:
            raise SystemExit(f"--data {folder}: too little text for prompts of {tokens} tokens in {passages} passages")

    def of(self, count: int) -> Iterator[Case]:
        for number in range(count):
            group = self._groups[number % len(self._groups)]
            yield self._reorder(number, group)
            yield self._composite(number, group)

    def _reorder(self, number: int, group: list[Passage]) -> Case:
        order = list(range(len(group)))
        shuffling = random.Random(number)
        while any(place == part for place, part in enumerate(order)):
            shuffling.shuffle(order)
        donor, starts = self._prompt(OTHER_INSTRUCTION, group, group[0].asked[0].question)
        wanted = [group[part] for part in order]
        recipient, places = self._prompt(INSTRUCTION, wanted, group[number % len(group)].asked[0].question)
        spans = [
            Span(place, "donor", starts[part], len(group[part].tokens))
            for place, part in zip(places, order, strict=True)
        ]
        return Case("reorder", {"donor": donor}, recipient, spans)

    def _composite(self, number: int, group: list[Passage]) -> Case:
        others = self._groups[(number + 1) % len(self._groups)]
        drawing = random.Random(number)
        question = group[number % len(group)].asked[0].question
        recipient, places = self._prompt(INSTRUCTION, group, question)
        donors, spans = {}, []
        for number_here, (place, passage) in enumerate(zip(places, group, strict=True)):
            slot = (number_here + 1) % (NEIGHBOURS + 1)
            around = drawing.sample(others, min(NEIGHBOURS, len(others)))
            held = [*around[:slot], passage, *around[slot:]]
            name = f"donor-{number_here}"
            donors[name], starts = self._prompt(OTHER_INSTRUCTION, held, passage.asked[0].question)
            spans.append(Span(place, name, starts[held.index(passage)], len(passage.tokens)))
        return Case("composite", donors, recipient, spans)

    def _prompt(self, instruction: str, passages: Sequence[Passage], question: str) -> tuple[list[int], list[int]]:
        """The tokens, and where each passage begins."""
        tokens, starts = self._encode(instruction), []
        for passage in passages:
            starts.append(len(tokens))
            tokens += [*passage.tokens, *self._encode("\n\n")]
        return tokens + self._encode(f"Question: {question}\nAnswer:"), starts

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def measure(engine: ReferenceEngine, case: Case, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    tokens = np.array(case.recipient, np.int32)
    plan = Plan.over("arms", tokens.size, 0, case.spans)
    cold = engine.prefill(tokens, room=options.continuation)
    forced = np.array(engine.decode(cold, options.continuation, stop_ids=()), np.int32)
    truth = engine.score(cold, forced).log_softmax(-1)
    donors = {}
    for name, prompt in case.donors.items():
        end = max(span.donor_end for span in case.spans if span.donor_id == name)
        donors[name] = engine.capture(engine.prefill(prompt[:end], room=0).workspace, end)
    found = {}
    for name, (policy, budget) in arms(plan, options.budget, engine.learned is not None).items():
        # An engine's probe is a whole step. CacheBlend's rule goes on from its first layers, as its authors run it.
        whole = not isinstance(policy, KVDeviation)
        reused = prefill_reusing(
            engine, tokens, plan, donors, policy, budget, truth=(cold, forced), whole_steps=whole, room=forced.size
        )
        other = engine.score(reused.prefill, forced).log_softmax(-1)
        found[name] = {
            "kl": float((truth.exp() * (truth - other)).sum(-1).clamp(min=0).mean()),
            "top1": float((truth.argmax(-1) == other.argmax(-1)).float().mean()),
            "share": reused.recompute.share,
        }
    return found


def summarise(records: dict[str, list[dict[str, dict[str, float]]]]) -> dict[str, Any]:
    drawing = np.random.default_rng(0)
    summary: dict[str, Any] = {}
    for kind, cases in records.items():
        rotated = np.array([case["rotate_only"]["kl"] for case in cases])
        for name in cases[0]:
            divergences = np.array([case[name]["kl"] for case in cases])
            drawn = drawing.integers(0, len(cases), (2000, len(cases)))
            ratios = divergences[drawn].mean(1) / rotated[drawn].mean(1)
            summary.setdefault(kind, {})[name] = {
                "n": len(cases),
                "kl": float(divergences.mean()),
                "kl_of_rotated": float(divergences.mean() / rotated.mean()),
                "interval": [float(each) for each in np.quantile(ratios, (0.025, 0.975))],
                "top1": float(np.mean([case[name]["top1"] for case in cases])),
                "share": float(np.mean([case[name]["share"] for case in cases])),
            }
    return summary


def main() -> None:
    options = parse_options()
    folder = options.model or default_model_folder()
    engine = ReferenceEngine.load(folder, device=options.device)
    if options.learned:
        engine.learned = read_learned(options.learned, engine)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    records: dict[str, list[dict[str, dict[str, float]]]] = defaultdict(list)
    for case in Cases(options.data, tokenizer, options.tokens, options.passages).of(options.cases):
        records[case.kind].append(measure(engine, case, options))
        last = records[case.kind][-1]
        said = ", ".join(f"{name} {each['kl']:.4f}" for name, each in last.items())
        print(f"[{time.strftime('%H:%M:%S')}] {case.kind} {len(records[case.kind])}: {said}", flush=True)
    summary = summarise(records)
    for kind, found in summary.items():
        print(f"\n{kind:32}{'n':>4}{'KL':>9}{'by rotated':>12}{'95%':>16}{'top-1':>8}{'share':>8}")
        for name, cell in found.items():
            low, high = cell["interval"]
            print(
                f"{name:32}{cell['n']:>4}{cell['kl']:>9.5f}{cell['kl_of_rotated']:>12.3f}"
                f"{f'{low:.3f}-{high:.3f}':>16}{cell['top1']:>8.4f}{cell['share']:>8.3f}"
            )
    if options.json:
        options.json.write_text(json.dumps({"options": vars(options), **summary}, default=str, indent=1))


def read_learned(file: Path, engine: ReferenceEngine) -> LearnedShift:
    """Whatever weights it was fitted for: who names a file knows."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as stored:
        identity = stored.metadata()["weights"]
    return LearnedShift.read(file, identity, engine.kv_shape).on(engine.geometry.device)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="folder with weights and tokenizer.json (default: SmolLM2)")
    parser.add_argument("--data", type=Path, default=default_folder(), help="folder with QMSum, SQuAD and *.rst papers")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=6000, help="of a prompt (default: %(default)s)")
    parser.add_argument("--passages", type=int, default=10, help="of a prompt (default: %(default)s)")
    parser.add_argument("--cases", type=int, default=8, help="of each kind (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=0.15, help="share of the reused tokens (default: %(default)s)")
    parser.add_argument("--continuation", type=int, default=48, help="forced tokens (default: %(default)s)")
    parser.add_argument("--learned", type=Path, help="a fitted correction, in place of the one that is found")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    if options.data is None or not options.data.is_dir():
        parser.error("--data: no folder with text; name one that has QMSum's *.jsonl, SQuAD's *.json and *.rst papers")
    return options


if __name__ == "__main__":
    main()
