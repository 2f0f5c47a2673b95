"""Several requests, at once and one after another."""

from __future__ import annotations

from typing import Any

from engine_process import counted, told
from texts import donor, recipient


def batch(engine: Any) -> dict[str, Any]:
    """Several at once, with rows of one token among them, which vLLM computes as it decodes."""
    prompts = [recipient("Barrel").replace("few", word) for word in ("three", "four", "five")]
    before = counted(engine)["confirmed"]
    together = [told(each) for each in engine.ask_all(prompts, salt="tenant")]
    confirmed = counted(engine)["confirmed"] - before
    alone = [told(engine.ask(prompt, salt="cold", reuse="off")) for prompt in prompts]
    return {"together": together, "alone": alone, "confirmed": confirmed}


def churn(engine: Any) -> dict[str, Any]:
    """Many donors and recipients; what of vLLM's blocks is free before and after."""
    pool = engine.scheduler.kv_cache_manager.block_pool
    before, free = counted(engine)["confirmed"], pool.get_num_free_blocks()
    for kind in ("Anchor", "Basket", "Crate", "Drum"):
        engine.ask(donor(kind), tokens=1)
        engine.settle()
        engine.ask_all([recipient(kind), recipient(kind).replace("few", "two")], tokens=2)
    return {"confirmed": counted(engine)["confirmed"] - before, "free": [free, pool.get_num_free_blocks()]}
