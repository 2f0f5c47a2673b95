"""Is a request ever slower because SemBlend is there? Time to first token with reuse and with reuse off, in pairs.

One process learns its costs from nothing and serves all cells. A cell is a length, a shape and a number of requests in
flight. Cells of one length are measured in rounds: every shape with reuse, and once the same length with reuse off.
That one is the other half of each shape's pair, since a cold prefill costs the same whatever its text is. Each begins a
round in turn. Both arms get fresh text, so the exact cache never helps.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from semblend_core.testing.benchmarks import kept
from semblend_core.testing.benchmarks.checked import (
    folder_to_write,
    not_negative,
    positive,
    why_too_long,
    why_too_short,
)
from semblend_core.testing.benchmarks.engine import Answer, EngineUnderTest
from semblend_core.testing.benchmarks.paired import Pairs
from semblend_core.testing.benchmarks.prompts import LEAST_TOKENS, Material, Prompts
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
OFF = "off"
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


def measure(
    engine: EngineUnderTest, prompts: Prompts, cells: Sequence[Cell], options: argparse.Namespace
) -> list[CellResult]:
    """Cells that differ in their shape alone."""
    first = cells[0]
    material = {cell.shape: SHAPES[cell.shape](prompts, cell.tokens) for cell in cells}
    pairs = {cell.shape: Pairs([], []) for cell in cells}
    served: dict[str, list[Answer]] = {cell.shape: [] for cell in cells}
    arms = (OFF, *material)
    for number in range(options.warm_up + first.pairs):
        if number % options.recipients_per_donor == 0:
            material = {shape: SHAPES[shape](prompts, first.tokens) for shape in material}
            for each in material.values():
                engine.ask(each.donors, salt="grid")
        answers = {}
        for arm in arms[number % len(arms) :] + arms[: number % len(arms)]:
            engine.settle()
            # Reuse off needs no donors: its salt has none, and what it computes is not captured.
            salt, shape = ("grid, off", first.shape) if arm == OFF else ("grid", arm)
            asked = [material[shape].recipient() for _ in range(first.in_flight)]
            answers[arm] = engine.ask(asked, salt=salt, reuse=arm != OFF, output_tokens=options.answer)
        _check_cold(answers[OFF])
        if number >= options.warm_up:
            for shape in material:
                pairs[shape].ours.append(_first_token_ms(answers[shape]))
                pairs[shape].theirs.append(_first_token_ms(answers[OFF]))
                served[shape] += answers[shape]
    return [_result(cell, pairs[cell.shape], served[cell.shape], engine.outcomes(served[cell.shape])) for cell in cells]


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
    parser.add_argument("--sizes", type=size, nargs="+", default=sizes, metavar="TOKENS[xN][:PAIRS]", help=meaning)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--pairs", type=positive, default=20, help="rounds of a length")
    parser.add_argument("--warm-up", type=not_negative, default=2, help="rounds of each length that are not counted")
    parser.add_argument(
        "--answer", type=positive, default=4, help="tokens: some things are done behind the first of them"
    )
    parser.add_argument("--recipients-per-donor", type=positive, default=4, help="donors are not timed, but take time")
    parser.add_argument(
        "--out", type=folder_to_write, help="folder: one file for each cell, written when its length is done"
    )
    parser.add_argument("--resume", action="store_true", help="leave out lengths whose cells lie in --out")


def size(written: str) -> tuple[int, int, int | None]:
    """Of an option: tokens of a prompt, how many such prompts come at once, and pairs if they are named."""
    matched = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?(?::([1-9]\d*))?", written)
    if matched is None:
        raise argparse.ArgumentTypeError(f"{written!r} is not TOKENS[xN][:PAIRS], each a whole number above 0")
    tokens, at_once, pairs = matched.groups()
    return int(tokens), int(at_once or 1), int(pairs) if pairs else None


def why_not(options: argparse.Namespace) -> str | None:
    """Why a run with these could not work, in words that name the option."""
    sizes = [tokens for tokens, *_ in options.sizes]
    return (
        why_too_short("--sizes", min(sizes), LEAST_TOKENS)
        or why_too_long(max(sizes) + options.answer, options)
        or kept.why_not_here(options)
    )


def run(engine: EngineUnderTest, prompts: Prompts, options: argparse.Namespace) -> dict[str, Any]:
    """Every cell, by length: printed as a table, and returned."""
    kept.note_options(options)
    results = []
    for tokens, at_once, pairs in options.sizes:
        cells = [Cell(tokens, shape, at_once, pairs or options.pairs) for shape in options.shapes]
        measured = _measured_before(cells, options) or measure(engine, prompts, cells, options)
        for cell, result in zip(cells, measured, strict=True):
            kept.keep(options, cell.file_name, json.dumps(asdict(result)))
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


def _measured_before(cells: Sequence[Cell], options: argparse.Namespace) -> list[CellResult]:
    """Of an earlier run that was broken off: all of them, or none."""
    return [CellResult(**json.loads(each)) for each in kept.earlier(options, [cell.file_name for cell in cells])]
