"""The program of ``test_windows.py``: a model with sliding windows, all of whose KV vLLM is told to keep."""

from __future__ import annotations

from typing import Any

from engine_process import counted, fault, new_engine, run, told
from texts import donor, four_logs, logs, recipient


def main(model: str) -> dict[str, Any]:
    engine = new_engine(model=model, settings={"store_host_bytes": "512MiB"}, disable_hybrid_kv_cache_manager=True)
    (group,) = engine.scheduler.kv_cache_config.kv_cache_groups
    found: dict[str, Any] = {"window": group.kv_cache_spec.sliding_window}
    engine.ask(donor("Barrel"), tokens=1)
    for log in logs():
        engine.ask(log, tokens=1)
    engine.settle()
    prompts = {"one document": recipient("Barrel"), "four documents": four_logs()}
    found["answers"] = {name: asked(engine, prompt) for name, prompt in prompts.items()}
    found["load"] = fault(engine, "scatter", 0)
    engine.check_integrity()
    return found


def asked(engine: Any, prompt: str) -> dict[str, Any]:
    before = counted(engine)["confirmed"]
    reused = told(engine.ask(prompt, salt="tenant"))
    confirmed = counted(engine)["confirmed"] - before
    cold = told(engine.ask(prompt, salt="cold", reuse="off"))
    off = told(engine.ask(prompt, salt="tenant", reuse="off"))
    return {"reused": reused, "confirmed": confirmed, "cold": cold, "off": off}


if __name__ == "__main__":
    run(main)
