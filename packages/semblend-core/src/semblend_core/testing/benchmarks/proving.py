"""Does the self-test pass for real weights, and is a document behind another instruction reused?"""

from __future__ import annotations

import argparse
from typing import Any

from semblend_core.testing.benchmarks.checked import positive, why_too_long
from semblend_core.testing.benchmarks.engine import EngineUnderTest
from semblend_core.testing.benchmarks.prompts import INSTRUCTION, QUESTION, Prompts


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--document", type=positive, default=600, help="tokens")
    parser.add_argument("--answer", type=positive, default=4, help="tokens")


def why_not(options: argparse.Namespace) -> str | None:
    """Why a run with these could not work, in words that name the option."""
    return why_too_long(INSTRUCTION + options.document + QUESTION + options.answer, options)


def run(engine: EngineUnderTest, prompts: Prompts, options: argparse.Namespace) -> dict[str, Any]:
    """The document comes twice: the self-test judges the first request, the second is served after it."""
    document, answers = prompts.page(options.document), []
    for _ in range(2):
        asked = prompts.fresh(INSTRUCTION) + document + prompts.fresh(QUESTION)
        answers += engine.ask([asked], salt="self-test", output_tokens=options.answer)
        engine.settle()
    (state, says), confirmed = engine.self_test(), engine.confirmed_tokens()
    result = {
        "engine": engine.name,
        "state": state,
        "says": says,
        "prompt_tokens": answers[-1].prompt_tokens,
        "cached_tokens": answers[-1].cached_tokens,
        "confirmed_tokens": confirmed,
        "outcomes": dict(engine.outcomes(answers)),
    }
    held = state == "passed" and confirmed > 0
    print(f"{'holds' if held else 'FAILS'} self-test {state}: {says}; {confirmed} tokens reused")
    return result
