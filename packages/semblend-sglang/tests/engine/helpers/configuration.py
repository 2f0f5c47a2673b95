"""The scenes of ``semblend_core.testing.configurations`` in an SGLang with one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import scenes
import torch
from archive import first, recipient
from ranked_engine import RankedEngine

from semblend_core import tenant_of_salt
from semblend_core.testing import apart

CASES = {"one document": scenes.ONE, "four documents": scenes.FOUR}
FAULTS = {"lookup": "internal_error", "sources": "internal_error", "move": "load_failed"}
"""What is broken, and why a prompt is declined then."""


def found_in(engine: RankedEngine, folder: Path) -> dict[str, Any]:
    """All of them. ``folder``: for what the scheduler's process leaves."""
    found: dict[str, Any] = {"answers": {name: _asked(engine, case) for name, case in CASES.items()}}
    found["proved"] = _state(engine)["proved"]
    found["conversation"] = scenes.conversation(engine)
    found["moved"] = moved(engine, folder)
    found["batch"] = batch(engine)
    found["crowd"] = scenes.crowd(engine)["answers"]
    found["faults"] = {what: _fault(engine, what) | {"reason": reason} for what, reason in FAULTS.items()}
    return found


def left_in(engine: RankedEngine) -> dict[str, Any]:
    """At the end: what of the pool is free or can be evicted, before it is emptied and behind that."""
    engine.let_scheduler_idle()  # Where SGLang counts its slots.
    full = _state(engine)
    engine.engine.flush_cache()
    emptied = _state(engine)
    assert emptied["evictable"] == [0, 0]
    for state in (full, emptied):
        assert (state["requests"], state["loads"]) == (0, 0)
    free = [full["free"] + sum(full["evictable"]), emptied["free"]]
    return {"churn": {"confirmed": engine.confirmed(), "free": free}}


def told(answer: dict[str, Any]) -> dict[str, Any]:
    """As the tests read it."""
    about = answer["meta_info"]
    return {
        "tokens": answer["output_ids"],
        "logprobs": [{token: value for value, token, _ in step} for step in about["output_top_logprobs"]],
        "prompt_tokens": about["prompt_tokens"],
        "cached_tokens": about["cached_tokens"],
    }


def moved(engine: RankedEngine, folder: Path) -> dict[str, Any]:
    """How far a prompt's KV is from a cold one, by layer."""
    prompt, before = recipient(scenes.ONE).replace("closely", "very closely"), engine.confirmed()
    reused = kv_of(engine, folder / "reused", prompt, salt="tenant")
    confirmed = engine.confirmed() - before
    cold = kv_of(engine, folder / "cold", prompt, salt="cold, moved", wish="off")
    parts = {name: apart(reused[name], part) for name, part in cold.items() if part.numel()}
    return {"confirmed": confirmed, "tokens": cold["keys"].shape[1], "parts": parts}


def kv_of(engine: RankedEngine, file: Path, prompt: str, **how: Any) -> dict[str, torch.Tensor]:
    engine.on_ranks("record_kv", file=str(file))
    engine.ask(prompt, tokens=1, **how)
    found: dict[str, torch.Tensor] = torch.load(file)
    return found


def batch(engine: RankedEngine) -> dict[str, Any]:
    """Several at once that reuse something."""
    engine.ask(first(), salt="batch", tokens=1)
    prompts, before = [recipient(scenes.ONE, f"Question {n}?") for n in range(3)], engine.confirmed()
    together = engine.ask(prompts, salt="batch")
    confirmed = engine.confirmed() - before
    alone = [engine.ask(prompt, salt=f"cold, {n}", wish="off") for n, prompt in enumerate(prompts)]
    return {"together": list(map(told, together)), "alone": list(map(told, alone)), "confirmed": confirmed}


def _asked(engine: RankedEngine, case: str) -> dict[str, Any]:
    found = scenes.asked(engine, case)
    return {name: told(part) if isinstance(part, dict) else part for name, part in found.items()}


def _fault(engine: RankedEngine, what: str) -> dict[str, Any]:
    found = scenes.fault(engine, what, 0)
    return found | {"broken": told(found["broken"])}


def _state(engine: RankedEngine) -> dict[str, Any]:
    (only,) = engine.on_ranks("state", tenant=tenant_of_salt("tenant"))
    return dict(only)
