"""The fit from beginning to end: learn from most requests, choose ridges by some, judge by the rest."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from semblend_core.contract import TokenIds, as_token_ids, identity_of_weights
from semblend_core.kv.learned_shift import SUFFIX, LearnedShift, folder_of_corrections
from semblend_core.recompute import ROW_SHIFT
from semblend_core.recompute.fit.collecting import Judge, learn_from, samples
from semblend_core.recompute.fit.equations import Equations, choose_maps
from semblend_core.recompute.fit.requests import RequestMaker, read_text
from semblend_core.reference.engine import ReferenceEngine
from semblend_core.reference.loading import default_model_folder
from semblend_core.settings import Settings

CHECKED = 5
"""One request in so many chooses the ridge."""
NEARER = 0.97
"""Divergence that a fit must come under, by that without it, to be worth a file."""


@dataclass(frozen=True, slots=True)
class Fitting:
    report: dict[str, Any]
    file: Path | None
    """None: it does not pay."""

    @classmethod
    def run(cls, options: argparse.Namespace, say: Callable[[str], None]) -> Fitting:
        folder = Path(options.model).expanduser() if options.model else default_model_folder()
        if options.device != "cpu":
            torch.backends.cuda.matmul.allow_tf32 = True
        engine = ReferenceEngine.load(folder, device=options.device)
        identity = identity_of_weights(folder)
        documents = encoded(folder, read_text(options.text))
        say(f"{sum(map(len, documents))} tokens of text, {options.requests} requests of at most {options.tokens}")
        maker = RequestMaker(documents, min(options.tokens, engine.max_tokens - options.continuation), options.seed)
        drawn = samples(engine, maker, options.continuation)

        learn, check = (Equations(engine.kv_shape, engine.geometry.device) for _ in range(2))
        for number, sample in enumerate(islice(drawn, options.requests)):
            learn_from(engine, sample, ROW_SHIFT, check if number % CHECKED == CHECKED - 1 else learn)
            if (number + 1) % 10 == 0:
                say(f"{number + 1} of {options.requests} requests, {learn.samples} tokens")
        maps, layers = choose_maps(learn, check, ROW_SHIFT)
        learned = LearnedShift(engine.kv_shape, maps.to(engine.geometry.device), ROW_SHIFT)

        say(f"judging by {options.judged} further requests")
        judge = Judge(engine, options.continuation)
        arms: dict[str, list[float]] = {"without": [], "with": []}
        for sample in islice(drawn, options.judged):
            arms["without"].append(judge.divergence(sample, replace(ROW_SHIFT, learned=False), None))
            arms["with"].append(judge.divergence(sample, replace(ROW_SHIFT, learned=True), learned))
        report = {"requests": options.requests, "tokens": learn.samples, "layers": layers}
        report |= {f"kl_{name}": float(np.mean(found)) for name, found in arms.items()}
        say(f"mean KL {report['kl_without']:.5f} without the fit, {report['kl_with']:.5f} with it")
        if report["kl_with"] > NEARER * report["kl_without"]:
            return cls(report, None)
        file = options.out or _where_engines_look(identity)
        learned.save(file, identity, report)
        return cls(report, file)


def _where_engines_look(identity: str) -> Path:
    folder = folder_of_corrections(Settings.from_env().corrections_dir)
    if folder is None:
        raise SystemExit("SEMBLEND_CORRECTIONS_DIR=none: name a file with --out")
    return folder / f"{identity}{SUFFIX}"


def encoded(folder: Path, documents: list[str]) -> list[TokenIds]:
    """By the tokenizer that lies with the weights."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [as_token_ids(tokenizer.encode(text, add_special_tokens=False).ids) for text in documents if text]
