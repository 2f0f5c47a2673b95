"""Is a request ever slower because SemBlend is there? Time to first token with reuse and with reuse off, in pairs.

One process learns its costs from nothing and serves all cells. A cell is a length, a shape and a number of requests in
flight. Both arms get fresh text, so the exact cache never helps. Their order alternates.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semblend_core.testing.benchmarks.engine import Answer, EngineUnderTest
from semblend_core.testing.benchmarks.paired import Pairs
from semblend_core.testing.benchmarks.prompts import Material, Prompts
from semblend_core.testing.benchmarks.script import as_text

MOST_MEDIAN, MOST_UPPER_END = 1.03, 1.06
"""Of the time without reuse."""
SHAPES: dict[str, Callable[[Prompts, int], Material]] = {
    "one-document": lambda prompts, size: prompts.new_instruction(size),
    "reorder-4": lambda prompts, size: prompts.reorder(size, 4),
    "reorder-10": lambda prompts, size: prompts.reorder(size, 10),
    "composite-4": lambda prompts, size: prompts.composite(size, 4),
    "composite-10": lambda prompts, size: prompts.composite(size, 10),
}
COLD_LIMIT = 64
"""Tokens: the arm with reuse off must find no more than chance in the exact cache."""


@dataclass(frozen=True)
class Cell:
    tokens: int
    shape: str
    in_flight: int = 1
    pairs: int = 20

    @property
    def file_name(self) -> str:
        return f"{self.tokens}-{self.shape}-{self.in_flight}.json"


@dataclass(frozen=True)
class CellResult:
    tokens: int
    shape: str
    in_flight: int
    pairs: int
    ratio: float
    low: float
    high: float
    reuse_ms: float
    off_ms: float
    reused_tokens: float
    outcomes: dict[str, int]
    """Of the timed requests with reuse on."""
    reuse_all_ms: list[float]
    off_all_ms: list[float]

    @property
    def holds(self) -> bool:
        return self.ratio <= MOST_MEDIAN and self.high < MOST_UPPER_END

    def __str__(self) -> str:
        ended = ", ".join(f"{count} {kind}" for kind, count in sorted(self.outcomes.items()))
        return (
            f"{'holds' if self.holds else 'FAILS':5} {self.tokens:6d} {self.shape:13} x{self.in_flight}  "
            f"off {self.off_ms:8.1f}  on {self.reuse_ms:8.1f} ms  ratio {self.ratio:.3f} "
            f"[{self.low:.3f}, {self.high:.3f}]  reused {self.reused_tokens:.0f}  ({ended})"
        )


def measure(engine: EngineUnderTest, prompts: Prompts, cell: Cell, options: argparse.Namespace) -> CellResult:
    pairs = Pairs([], [])
    served: list[Answer] = []
    material = SHAPES[cell.shape](prompts, cell.tokens)
    for number in range(options.warm_up + cell.pairs):
        if number % options.recipients_per_donor == 0:
            material = SHAPES[cell.shape](prompts, cell.tokens)
            engine.ask(material.donors, salt="grid")
        arms = ("on", "off") if number % 2 else ("off", "on")
        answers = {}
        for arm in arms:
            engine.settle()
            asked = [material.recipient() for _ in range(cell.in_flight)]
            # Reuse off needs no donors: its salt has none, and what it computes is not captured.
            salt = "grid" if arm == "on" else "grid, off"
            answers[arm] = engine.ask(asked, salt=salt, reuse=arm == "on", output_tokens=options.answer)
        _check_cold(answers["off"])
        if number >= options.warm_up:
            pairs.ours.append(_first_token_ms(answers["on"]))
            pairs.theirs.append(_first_token_ms(answers["off"]))
            served += answers["on"]
    return _result(cell, pairs, served, engine.outcomes(served))


def _first_token_ms(answers: Sequence[Answer]) -> float:
    return statistics.fmean(answer.first_token_ms for answer in answers)


def _check_cold(answers: Sequence[Answer]) -> None:
    most = max(answer.cached_tokens for answer in answers)
    if most > COLD_LIMIT:
        raise AssertionError(f"reuse was off, and the engine found {most} tokens in its cache")


def _result(cell: Cell, pairs: Pairs, served: Sequence[Answer], outcomes: Counter[str]) -> CellResult:
    ratio, (ours, theirs) = pairs.ratio(), pairs.medians()
    return CellResult(
        **asdict(cell),
        ratio=round(ratio.value, 4),
        low=round(ratio.low, 4),
        high=round(ratio.high, 4),
        reuse_ms=round(ours, 2),
        off_ms=round(theirs, 2),
        reused_tokens=statistics.median(answer.cached_tokens for answer in served),
        outcomes=dict(outcomes),
        reuse_all_ms=[round(value, 2) for value in pairs.ours],
        off_all_ms=[round(value, 2) for value in pairs.theirs],
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    sizes = [(2048, 1, 60), (6144, 1, 40), (16384, 1, None), (32000, 1, None)]
    meaning = "of a prompt; N: how many such prompts come at once; PAIRS: more than --pairs, as short ones need"
    parser.add_argument("--sizes", type=_size, nargs="+", default=sizes, metavar="TOKENS[xN][:PAIRS]", help=meaning)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=2, help="pairs of each cell that are not counted")
    parser.add_argument("--answer", type=int, default=4, help="tokens: some things are done behind the first of them")
    parser.add_argument("--recipients-per-donor", type=int, default=4, help="donors are not timed, but take time")
    parser.add_argument("--out", type=Path, help="folder: one file for each cell, written as soon as it is done")
    parser.add_argument("--resume", action="store_true", help="leave out cells that lie in --out")


def _size(written: str) -> tuple[int, int, int | None]:
    size, _, pairs = written.partition(":")
    tokens, _, at_once = size.partition("x")
    return int(tokens), int(at_once or 1), int(pairs) if pairs else None


def run(engine: EngineUnderTest, prompts: Prompts, options: argparse.Namespace) -> dict[str, Any]:
    """Every cell, by length: printed as a table, and returned."""
    sizes = [(tokens, at_once, pairs or options.pairs) for tokens, at_once, pairs in options.sizes]
    cells = [Cell(tokens, shape, at_once, pairs) for tokens, at_once, pairs in sizes for shape in options.shapes]
    results = []
    for cell in cells:
        file = None if options.out is None else options.out / cell.file_name
        if file is not None and options.resume and file.exists():
            result = CellResult(**json.loads(file.read_text()))
        else:
            result = measure(engine, prompts, cell, options)
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(asdict(result)) + "\n")
        print(result, flush=True)
        results.append(result)
    failing = [f"{result.tokens} {result.shape} x{result.in_flight}" for result in results if not result.holds]
    print(f"at most {MOST_MEDIAN} of the time without reuse, the interval's end below {MOST_UPPER_END}: ", end="")
    print("holds in every cell" if not failing else f"FAILS in {', '.join(failing)}", flush=True)
    return {
        "engine": engine.name,
        "cells": [asdict(result) for result in results],
        "failing": failing,
        "options": as_text(options),
    }
