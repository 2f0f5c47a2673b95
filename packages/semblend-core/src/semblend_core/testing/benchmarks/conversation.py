"""A conversation over a document that another request brought: what each turn costs with reuse, and with reuse off.

Both arms run side by side, turn by turn, in alternating order; each goes on with its own answers. The document comes
from somebody else's request, behind another instruction, so the first turn reuses it and every later one continues it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from semblend_core.testing.benchmarks.checked import not_negative, positive, why_too_long
from semblend_core.testing.benchmarks.engine import Answer, EngineUnderTest
from semblend_core.testing.benchmarks.fidelity import forced, strays
from semblend_core.testing.benchmarks.paired import bootstrapped
from semblend_core.testing.benchmarks.prompts import INSTRUCTION, Prompts
from semblend_core.testing.benchmarks.script import as_text

FIRST_TURN, LATER_TURNS, MORE_COMPUTED = 1.3, 1.15, 64
"""The first turn's time of stock's second; a later turn's of stock's same; tokens it may compute beyond stock's."""
QUESTIONS = (20, 300, 60, 120, 24, 200, 40, 80, 160, 30)
"""Tokens of the questions, over and over."""


@dataclass(frozen=True)
class Turn:
    """Medians over the conversations."""

    number: int
    prompt_tokens: float
    ms: float
    off_ms: float
    computed: float
    off_computed: float


class Speaker:
    """One arm of a conversation."""

    def __init__(self, engine: EngineUnderTest, opening: list[int], salt: str, reuse: bool, answer: int) -> None:
        self._engine, self._salt, self._reuse, self._answer = engine, salt, reuse, answer
        self.history = list(opening)

    def turn(self, question: list[int], top: int = 0) -> Answer:
        self.history += question
        asked = {"salt": self._salt, "reuse": self._reuse, "output_tokens": self._answer, "top": top}
        answer = self._engine.ask([self.history], **asked)[0]  # type: ignore[arg-type]
        self.history += answer.tokens
        self._engine.settle()
        return answer


def begin(engine: EngineUnderTest, prompts: Prompts, options: argparse.Namespace, salt: str) -> list[int]:
    """Somebody else asks about the document; how a conversation over it begins."""
    document = prompts.page(options.document)
    engine.ask([prompts.fresh(48) + document + prompts.fresh(32)], salt=salt)
    engine.settle()
    return prompts.fresh(INSTRUCTION) + document


def converse(engine: EngineUnderTest, prompts: Prompts, options: argparse.Namespace) -> list[Turn]:
    """Medians of ``options.conversations``, after one that warms up."""
    seen: list[list[dict[bool, Answer]]] = [[] for _ in range(options.turns)]
    for number in range(options.conversations + 1):
        salt = f"conversation-{number}"
        opening = begin(engine, prompts, options, salt)
        arms = {
            True: Speaker(engine, opening, salt, True, options.answer),
            False: Speaker(engine, opening, f"{salt}, off", False, options.answer),
        }
        for turn in range(options.turns):
            question = prompts.fresh(QUESTIONS[turn % len(QUESTIONS)])
            order = (True, False) if (turn + number) % 2 else (False, True)
            answers = {reuse: arms[reuse].turn(question) for reuse in order}
            if number:
                seen[turn].append(answers)
    return [_medians(number + 1, answers) for number, answers in enumerate(seen)]


def _medians(number: int, answers: Sequence[dict[bool, Answer]]) -> Turn:
    def median(reuse: bool, field: str) -> float:
        return round(float(statistics.median(getattr(each[reuse], field) for each in answers)), 2)

    return Turn(
        number,
        prompt_tokens=median(True, "prompt_tokens"),
        ms=median(True, "first_token_ms"),
        off_ms=median(False, "first_token_ms"),
        computed=median(True, "computed_tokens"),
        off_computed=median(False, "computed_tokens"),
    )


def judge(turns: Sequence[Turn], *, times: bool) -> list[str]:
    """What does not hold. ``times``: whether times are held to their bars, or counts only."""
    faults = []
    if times and len(turns) > 1 and turns[0].ms > FIRST_TURN * turns[1].off_ms:
        faults.append(f"turn 1 took {turns[0].ms / turns[1].off_ms:.2f} of the second turn with reuse off")
    for turn in turns[1:]:
        if times and turn.ms > LATER_TURNS * turn.off_ms:
            faults.append(f"turn {turn.number} took {turn.ms / turn.off_ms:.2f} of the time with reuse off")
        if turn.computed > turn.off_computed + MORE_COMPUTED:
            faults.append(f"turn {turn.number} computed {turn.computed - turn.off_computed:.0f} tokens more")
    return faults


def fidelity(engine: EngineUnderTest, prompts: Prompts, options: argparse.Namespace) -> dict[str, Any]:
    """KL of the first and the last turn against the same prompt computed cold, by forced text. Needs real weights."""
    found: dict[str, list[float]] = {"first": [], "last": []}
    for number in range(options.fidelity):
        salt = f"fidelity-{number}"
        speaker = Speaker(engine, begin(engine, prompts, options, salt), salt, True, options.answer)
        for turn in range(options.turns):
            question = prompts.fresh(QUESTIONS[turn % len(QUESTIONS)])
            asked = [*speaker.history, *question]
            speaker.turn(question)
            if turn in (0, options.turns - 1):
                limits = {"output_tokens": options.answer, "top": options.top}
                cold = engine.ask([asked], salt=f"{salt}, cold {turn}", reuse=False, **limits)[0]
                steps = forced(engine, asked, cold, options, salt=salt)
                kl, _ = strays(cold, steps)
                found["last" if turn else "first"].append(kl)
                print(f"conversation {number + 1}, turn {turn + 1}: KL {kl:.5f}", flush=True)
    first, last = (bootstrapped(found[name], np.mean) for name in ("first", "last"))
    held = last.value <= first.high
    print(f"{'holds' if held else 'FAILS'} KL of turn 1 {first}, of turn {options.turns} {last}, against cold")
    return {"kl_first": asdict(first), "kl_last": asdict(last), "all": found, "holds": held}


def equal_requests(engine: EngineUnderTest, prompts: Prompts, options: argparse.Namespace) -> dict[str, Any]:
    """KV that equal requests hold at once, of a prompt that is reused. At best that of one, and a tail for each."""
    opening = begin(engine, prompts, options, "equal")
    held = {}
    asked = opening + prompts.fresh(QUESTIONS[2])
    for reuse in (True, False):
        engine.most_kv_tokens()
        salt = "equal" if reuse else "equal, off"
        engine.ask([asked] * options.equal, salt=salt, reuse=reuse, output_tokens=options.answer)
        held["on" if reuse else "off"] = engine.most_kv_tokens()
    # What each has of its own: the answer, a block that is not full, and one for the row that is sampled.
    tail = options.answer + 2 * engine.block_tokens
    bar = len(asked) + options.equal * tail
    holds = held["on"] <= bar
    print(
        f"{'holds' if holds else 'FAILS'} {options.equal} equal requests of {len(asked)} tokens hold {held['on']} "
        f"tokens of KV, with reuse off {held['off']}; one and {options.equal} tails are {bar}"
    )
    return {"prompt_tokens": len(asked), "held": held, "bar": bar, "holds": holds}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--document", type=positive, default=16_000, help="tokens")
    parser.add_argument("--turns", type=positive, default=10)
    parser.add_argument("--answer", type=positive, default=64, help="tokens of each answer")
    parser.add_argument("--conversations", type=not_negative, default=5, help="0: none are timed")
    parser.add_argument("--equal", type=not_negative, default=8, help="equal requests at once; 0: leave them out")
    parser.add_argument(
        "--fidelity", type=not_negative, default=0, help="conversations whose answers are compared with cold"
    )
    parser.add_argument("--top", type=positive, default=20, help="log-probabilities that are compared")
    parser.add_argument("--counts-only", action="store_true", help="no bars on times, as on a busy or slow machine")


def why_not(options: argparse.Namespace) -> str | None:
    """Why a run with these could not work, in words that name the option."""
    asked = sum(QUESTIONS[turn % len(QUESTIONS)] for turn in range(options.turns))
    return why_too_long(INSTRUCTION + options.document + asked + options.turns * options.answer, options)


def run(engine: EngineUnderTest, prompts: Prompts, options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"engine": engine.name}
    if options.conversations:
        turns = converse(engine, prompts, options)
        result["turns"] = [asdict(turn) for turn in turns]
        _print_turns(turns)
        result["faults"] = judge(turns, times=not options.counts_only)
        print("\n".join(f"FAILS {fault}" for fault in result["faults"]) or "holds in every turn", flush=True)
    if options.equal:
        result["equal"] = equal_requests(engine, prompts, options)
    if options.fidelity:
        result["fidelity"] = fidelity(engine, prompts, options)
    return result | {"options": as_text(options)}


def _print_turns(turns: Sequence[Turn]) -> None:
    print("turn  prompt   ms on  ms off  ratio  computed on  computed off")
    for turn in turns:
        print(
            f"{turn.number:4d} {turn.prompt_tokens:7.0f} {turn.ms:7.1f} {turn.off_ms:7.1f} "
            f"{turn.ms / turn.off_ms:6.2f} {turn.computed:12.0f} {turn.off_computed:13.0f}",
            flush=True,
        )
