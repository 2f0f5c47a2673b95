"""What is asked of a real engine, whatever its configuration."""

from __future__ import annotations

from typing import Any

from archive import CASES, PASSAGES, recipient
from ranked_engine import RankedEngine

from semblend_core import tenant_of_salt

ONE, FOUR = "new instruction", "passages of four requests"


def asked(engine: RankedEngine, case: str) -> dict[str, Any]:
    """With reuse, cold, by another tenant, and with reuse off behind the reuse."""
    for donor in CASES[case][0]:
        engine.ask(donor, salt="tenant", tokens=1)
    before = engine.confirmed()
    reused = engine.ask(recipient(case), salt="tenant")
    confirmed = engine.confirmed() - before
    cold = engine.ask(recipient(case), salt=f"cold, {case}", wish="off")
    other = engine.ask(recipient(case), salt=f"another, {case}")
    off = engine.ask(recipient(case), salt="tenant", wish="off")
    return {"reused": reused, "confirmed": confirmed, "cold": cold, "other": other, "off": off}


def conversation(engine: RankedEngine) -> list[dict[str, Any]]:
    """Each turn goes on from what the one before was served with."""
    prompt, turns = recipient(ONE), []
    for number in range(2):
        answer = engine.ask(prompt, salt="tenant", tokens=12)
        turns.append(answer["meta_info"] | {"output_top_logprobs": None})
        prompt = f"{prompt}{answer['text']}\n\nQuestion: number {number}?\nAnswer:"
    return turns


def crowd(engine: RankedEngine) -> dict[str, Any]:
    """More at once than the pool can hold: some wait, some are evicted, and all ranks must agree on whom."""
    prompts = [f"Number {n}.\n\n{PASSAGES[n % 4]}\n\n{PASSAGES[(n + 1) % 4]}\n\nQuestion {n}?" for n in range(10)]
    answers = engine.ask(prompts, salt="tenant", tokens=4)
    return {"answers": len(answers), "ranks": engine.on_ranks("state", tenant=tenant_of_salt("tenant"))}


def fault(engine: RankedEngine, what: str, rank: int) -> dict[str, Any]:
    """Something fails at one rank alone while four passages are reused; then nothing does any more."""
    for donor in CASES[FOUR][0]:
        engine.ask(donor, salt=what, tokens=1)
    before = engine.counted()
    engine.on_ranks("break_at", rank=rank, what=what)
    broken = engine.ask(recipient(FOUR), salt=what)
    engine.on_ranks("mend")
    between = engine.counted()
    engine.ask(f"Once more. {recipient(FOUR)}", salt=what)
    ranks = engine.on_ranks("state", tenant=tenant_of_salt(what))
    return {"before": before, "broken": broken, "between": between, "after": engine.counted(), "ranks": ranks}


def a_list(kind: str, opening: str) -> str:
    lines = " ".join(f"The {kind} part {n} weighs {n * 29 % 83 + 3} pounds." for n in range(30))
    return f"{opening}\n\n{lines}\n\nQuestion: which is the lightest?\nAnswer:"
