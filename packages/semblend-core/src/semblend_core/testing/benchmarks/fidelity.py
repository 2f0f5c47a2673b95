"""How far do answers with reuse stray from cold ones, inside the engine? By forced text, so sampling does not matter.

The engine answers a prompt cold. Then it is asked for each token of that answer behind the same prompt with reuse: it
goes on from what it computed first, so all steps see one prefill.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from semblend_core.testing.benchmarks.checked import positive, why_too_long, why_too_short
from semblend_core.testing.benchmarks.engine import Answer, EngineUnderTest
from semblend_core.testing.benchmarks.paired import bootstrapped
from semblend_core.testing.benchmarks.prompts import DONOR_INSTRUCTION, HEADER, Material, Prompts
from semblend_core.testing.benchmarks.script import as_text
from semblend_core.testing.for_adapters import divergence

QUOTED = 40
"""Tokens of a passage that the prompt ends with: fewer than the shortest span. What follows them stands in it."""


@dataclass
class Strayed:
    """Of all cases of one kind."""

    kl: list[float] = field(default_factory=list)
    """Mean over the forced tokens, in nats."""
    top_1: list[float] = field(default_factory=list)
    """Share of them whose most likely token is the same."""
    reused: list[float] = field(default_factory=list)
    """Share of the prompt that was not computed."""
    kl_again: list[float] = field(default_factory=list)
    """As ``kl``, without reuse: what the engine strays by itself where it reads KV back that it has stored."""
    top_1_again: list[float] = field(default_factory=list)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=positive, default=10, help="of each kind")
    parser.add_argument("--size", type=positive, default=6000, help="tokens of a prompt")
    parser.add_argument("--passages", type=positive, default=10)
    parser.add_argument("--answer", type=positive, default=16, help="tokens of forced text")
    parser.add_argument("--again", action="store_true", help="ask without reuse too: what the engine strays by itself")
    parser.add_argument("--top", type=positive, default=20, help="log-probabilities that are compared")


def why_not(options: argparse.Namespace) -> str | None:
    """Why a run with these could not work, in words that name the option."""
    # Of the page in the middle the second half is quoted, and what follows stands in it too.
    least = options.passages * (HEADER + 2 * (QUOTED + options.answer))
    longest = DONOR_INSTRUCTION + options.size + QUOTED + options.answer
    return why_too_short("--size", options.size, least) or why_too_long(longest, options)


def run(engine: EngineUnderTest, prompts: Prompts, options: argparse.Namespace) -> dict[str, Any]:
    """Needs real weights, and ``--text`` for prompts that mean something."""
    kinds: dict[str, Callable[[Prompts, argparse.Namespace], Material]] = {
        "one document": one_document,
        "composite": composite,
        "reorder": reorder,
    }
    result: dict[str, Any] = {"engine": engine.name, "options": as_text(options)}
    for kind, made in kinds.items():
        strayed = Strayed()
        for number in range(options.cases):
            _add_case(strayed, engine, made(prompts, options), options, f"{kind} {number}")
        figures = {name: bootstrapped(values, np.mean) for name, values in asdict(strayed).items() if values}
        print(kind, *(f"{name} {figure}" for name, figure in figures.items()), sep="; ", flush=True)
        result[kind] = {name: asdict(figure) for name, figure in figures.items()} | {"all": asdict(strayed)}
    return result


def _add_case(
    strayed: Strayed, engine: EngineUnderTest, material: Material, options: argparse.Namespace, salt: str
) -> None:
    for donor in material.donors:
        engine.ask([donor], salt=salt)
    engine.settle()
    prompt = material.recipient()
    (cold,) = engine.ask([prompt], salt=f"{salt}, cold", reuse=False, output_tokens=options.answer, top=options.top)
    steps = forced(engine, prompt, cold, options, salt=salt)
    strayed.reused.append(steps[0].cached_tokens / steps[0].prompt_tokens)
    _note(strays(cold, steps), strayed.kl, strayed.top_1)
    if options.again:
        steps = forced(engine, prompt, cold, options, salt=f"{salt}, again", reuse=False)
        _note(strays(cold, steps), strayed.kl_again, strayed.top_1_again)


def _note(found: tuple[float, float], kl: list[float], top_1: list[float]) -> None:
    kl.append(found[0])
    top_1.append(found[1])


def forced(
    engine: EngineUnderTest,
    prompt: list[int],
    cold: Answer,
    options: argparse.Namespace,
    *,
    salt: str,
    reuse: bool = True,
) -> list[Answer]:
    """One answer for each token of the cold one, behind those before it."""
    asked = ([*prompt, *cold.tokens[:said]] for said in range(len(cold.tokens)))
    return [engine.ask([each], salt=salt, reuse=reuse, top=options.top)[0] for each in asked]


def strays(cold: Answer, steps: Sequence[Answer]) -> tuple[float, float]:
    """KL, mean over the forced tokens, and the share of them whose most likely token is the same."""
    pairs = [(ours, theirs.top[0]) for ours, theirs in zip(cold.top, steps, strict=True)]
    kl = float(np.mean([divergence([ours], [theirs]) for ours, theirs in pairs]))
    return kl, float(np.mean([_likeliest(ours) == _likeliest(theirs) for ours, theirs in pairs]))


def one_document(prompts: Prompts, options: argparse.Namespace) -> Material:
    """Behind another instruction."""
    document = prompts.page(options.size)
    donor = prompts.fresh(DONOR_INSTRUCTION) + document
    return Material([donor], lambda: [*prompts.fresh(DONOR_INSTRUCTION), *document, *_quoted([document])])


def composite(prompts: Prompts, options: argparse.Namespace) -> Material:
    """Passages of as many earlier prompts."""
    pages = _pages(prompts, options)
    donors = [prompts.fresh(DONOR_INSTRUCTION) + page for page in pages]
    return Material(donors, lambda: _composed(prompts, pages))


def reorder(prompts: Prompts, options: argparse.Namespace) -> Material:
    """The passages of one earlier prompt, the last first."""
    pages = _pages(prompts, options)
    donor = prompts.fresh(DONOR_INSTRUCTION) + [token for page in pages for token in page]
    return Material([donor], lambda: _composed(prompts, pages[::-1]))


def _pages(prompts: Prompts, options: argparse.Namespace) -> list[list[int]]:
    return [prompts.page(options.size // options.passages - HEADER) for _ in range(options.passages)]


def _composed(prompts: Prompts, pages: Sequence[list[int]]) -> list[int]:
    return [token for page in pages for token in (*prompts.fresh(HEADER), *page)] + _quoted(pages)


def _quoted(pages: Sequence[list[int]]) -> list[int]:
    """From the middle of the page in the middle."""
    page = pages[len(pages) // 2]
    return page[len(page) // 2 :][:QUOTED]


def _likeliest(step: dict[int, float]) -> int:
    return max(step, key=step.__getitem__)
