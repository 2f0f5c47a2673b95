"""Do other clients wait longer because hostile ones make SemBlend work? Two engines, one of them stock, in turns.

A round sends hostile prompts, if any, and polite ones behind them, all at once. Every arm serves the same round before
the next begins, and each time another arm is the first.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any, TypeAlias

import numpy as np

from semblend_core.testing.benchmarks.checked import not_negative, positive, why_too_long, why_too_short
from semblend_core.testing.benchmarks.paired import Interval, bootstrapped
from semblend_core.testing.benchmarks.prompts import Prompts

Asked: TypeAlias = tuple[list[int], str]
"""A prompt and its salt."""
Arm: TypeAlias = Callable[[Sequence[Asked]], list[float]]
"""Serves all at once: milliseconds to the first token of each."""

SHORTEST_SPAN = 16
"""What the arms have to be set to, so that a prompt holds as many spans as can be."""
POLITE_TOKENS = 512
POLITE, ATTACKER = "polite", "attacker"
p95 = partial(np.percentile, q=95)


class Crowd:
    def __init__(self, prompts: Prompts, tokens: int, seed: int = 3) -> None:
        self._prompts, self._tokens, self._random = prompts, tokens, random.Random(seed)
        self._polite = prompts.new_instruction(POLITE_TOKENS)
        self._attack = cycle([self.many_spans, self.one_token, self.one_period, self.one_off_salt])
        self._document = prompts.fresh(tokens)
        self._salts = 0

    def donors(self) -> list[Asked]:
        return [*((donor, POLITE) for donor in self._polite.donors), (self._document, ATTACKER)]

    def polite(self, count: int) -> list[Asked]:
        return [(self._polite.recipient(), POLITE) for _ in range(count)]

    def hostile(self, count: int) -> list[Asked]:
        return [next(self._attack)() for _ in range(count)]

    def many_spans(self) -> Asked:
        """Pieces of one document, each as short as a span may be, in another order each time."""
        starts = list(range(0, self._tokens - SHORTEST_SPAN, SHORTEST_SPAN))
        self._random.shuffle(starts)
        pieces = [self._document[at : at + SHORTEST_SPAN] + self._prompts.fresh(1) for at in starts]
        return [token for piece in pieces for token in piece][: self._tokens], ATTACKER

    def one_token(self) -> Asked:
        return self._prompts.fresh(1) * self._tokens, ATTACKER

    def one_period(self) -> Asked:
        period = self._prompts.fresh(self._random.randrange(2, 50))
        return (period * self._tokens)[: self._tokens], ATTACKER

    def one_off_salt(self) -> Asked:
        self._salts += 1
        return self._polite.recipient(), f"one of many {self._salts}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=positive, default=3)
    parser.add_argument("--rounds", type=positive, default=12, help="of each run, with and without hostile clients")
    parser.add_argument("--polite", type=positive, default=4, help="requests of a round")
    parser.add_argument("--hostile", type=positive, default=2, help="requests of a round")
    parser.add_argument("--hostile-tokens", type=positive, default=1632, help="480 spans take 8,160")
    parser.add_argument("--flood", type=not_negative, default=500, help="one-off salts at the end")


def why_not(options: argparse.Namespace) -> str | None:
    """Why a run with these could not work, in words that name the option."""
    too_short = why_too_short("--hostile-tokens", options.hostile_tokens, 2 * SHORTEST_SPAN)
    return too_short or why_too_long(max(POLITE_TOKENS, options.hostile_tokens) + 1, options)


def run(arms: Mapping[str, Arm], prompts: Prompts, options: argparse.Namespace) -> dict[str, Any]:
    crowd = Crowd(prompts, options.hostile_tokens)
    for asked in crowd.donors():
        for arm in arms.values():
            arm([asked])
    _warm_up(arms, crowd, options)
    rows: list[dict[str, Any]] = []
    for number in range(options.runs):
        for hostile in (0, options.hostile):
            times = _one_run(arms, crowd, options, hostile)
            for name, values in times.items():
                interval = bootstrapped(values, p95)
                rows.append({"run": number + 1, "hostile": hostile > 0, "arm": name, **vars(interval)})
                print(f"run {number + 1}, {hostile} hostile, {name}: p95 {interval} ms", flush=True)
    for _ in range(options.flood // 10):
        flood = [(prompts.fresh(100), crowd.one_off_salt()[1]) for _ in range(10)]
        for arm in arms.values():
            arm(flood)
    return {"options": {name: str(value) for name, value in vars(options).items()}, "runs": rows}


def _warm_up(arms: Mapping[str, Arm], crowd: Crowd, options: argparse.Namespace) -> None:
    for _ in range(3):
        asked = [*crowd.hostile(options.hostile), *crowd.polite(options.polite)]
        for arm in arms.values():
            arm(asked)


def _one_run(
    arms: Mapping[str, Arm], crowd: Crowd, options: argparse.Namespace, hostile: int
) -> dict[str, list[list[float]]]:
    """By arm and round. Those of one round share a batch, so their times are no chances of their own."""
    times: dict[str, list[list[float]]] = {name: [] for name in arms}
    for order in _orders(list(arms), options.rounds):
        asked = [*crowd.hostile(hostile), *crowd.polite(options.polite)]
        for name in order:
            times[name].append(arms[name](asked)[hostile:])
    return times


def _orders(names: list[str], rounds: int) -> Iterator[list[str]]:
    for number in range(rounds):
        first = number % len(names)
        yield names[first:] + names[:first]


def verdicts(rows: Sequence[Mapping[str, Any]], ours: str, theirs: str) -> list[str]:
    """For each run with hostile clients: whether the intervals of both arms meet."""
    by_place = {
        (row["run"], row["hostile"], row["arm"]): Interval(row["value"], row["low"], row["high"]) for row in rows
    }
    said = []
    for number in sorted({row["run"] for row in rows}):
        for hostile in (False, True):
            mine, other = by_place[number, hostile, ours], by_place[number, hostile, theirs]
            holds = mine.low <= other.high
            said.append(f"{'holds' if holds else 'FAILS'} run {number}, hostile {hostile}: {mine} against {other} ms")
    return said
