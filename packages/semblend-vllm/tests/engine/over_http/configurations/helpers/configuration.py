"""The scenes of ``semblend_core.testing.configurations`` in a vLLM with one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine_process import asked, counted, fault, keep_documents, told
from seen_kv import kv_of
from several import batch, churn
from texts import four_logs, recipient, recipients

from semblend_core.testing import apart


def found_in(engine: Any, faults: Sequence[str] = ("scatter",)) -> dict[str, Any]:
    """All of them. ``faults``: what is broken, each in its turn."""
    keep_documents(engine)
    found: dict[str, Any] = {"proved": engine.side.self_test.passed}
    found["answers"] = {
        name: asked(engine, prompt) | {"other": told(engine.ask(prompt, salt=f"other, {name}"))}
        for name, prompt in recipients().items()
    }
    found["moved"] = moved(engine)
    found["faults"] = {what: fault(engine, what, 0) | {"reason": "load_failed"} for what in faults}
    found["batch"] = batch(engine)
    found["churn"] = churn(engine)
    found["counted"] = counted(engine)
    return found


def balanced(engine: Any) -> list[dict[str, Any]]:
    """What was counted before one document is asked for in the tier that corrects, behind it, and behind four."""
    admission = engine.side.admission
    admission._settings = replace(admission._settings, quality_tier="balanced")
    counts = [counted(engine)]
    for prompt in (recipient("Barrel").replace("few", "some"), four_logs("Some logs of ships.")):
        engine.ask(prompt, tokens=1)
        counts.append(counted(engine))
    return counts


def moved(engine: Any) -> dict[str, Any]:
    """How far a prompt's KV is from a cold one, by layer."""
    prompt = recipient("Barrel").replace("few", "very few")
    before = counted(engine)["confirmed"]
    reused = kv_of(engine, prompt, salt="tenant")
    confirmed = counted(engine)["confirmed"] - before
    cold = kv_of(engine, prompt, salt="cold", reuse="off")
    start = engine.worker._proof.rotations[0].start
    parts = {"keys": apart(reused.keys[..., start:], cold.keys[..., start:])}
    if start:
        parts["latents"] = apart(reused.keys[..., :start], cold.keys[..., :start])
    if cold.values is not None:
        parts["values"] = apart(reused.values, cold.values)
    return {"confirmed": confirmed, "tokens": cold.tokens, "parts": parts}
