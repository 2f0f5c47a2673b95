"""The program of ``test_speculation.py``: an engine that guesses next tokens by n-grams, and what it guesses right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

from engine_process import asked, counted, fault, keep_documents, new_engine, told
from texts import four_logs, recipient, recipients

from semblend_core.testing import write_findings

NGRAMS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
ANSWER = 32


def main() -> dict[str, Any]:
    engine = new_engine(settings={"store_host_bytes": "512MiB"}, speculative_config=NGRAMS, disable_log_stats=False)
    found: dict[str, Any] = {}
    keep_documents(engine)
    ask = partial(guessed, engine)
    found["answers"] = {
        name: asked(engine, prompt, ask) | {"again": ask(prompt, salt="tenant")}
        for name, prompt in recipients().items()
    }
    found["probes"] = counted(engine)["probes"]
    found["batch"] = batch(engine)
    found["load"] = fault(engine, "scatter", 0, ANSWER)
    found["compared"] = compared(engine)
    engine.check_integrity()
    return found


def guessed(engine: Any, prompt: str, **how: Any) -> dict[str, Any]:
    """The answer, with what was guessed and what of it was right."""
    before = guesses(engine)
    answer = told(engine.ask(prompt, tokens=ANSWER, **how))
    return answer | {name: value - before[name] for name, value in guesses(engine).items()}


def guesses(engine: Any) -> dict[str, int]:
    names = {"guessed": "vllm:spec_decode_num_draft_tokens", "right": "vllm:spec_decode_num_accepted_tokens"}
    values = {metric.name: metric.value for metric in engine.llm.get_metrics() if hasattr(metric, "value")}
    return {name: int(values[metric]) for name, metric in names.items()}


def compared(engine: Any) -> dict[str, int]:
    """What became of an answer that was served with reuse and compared with a cold one."""
    guard, heard = engine.side.guard, Counter[str]()
    guard._settings = replace(guard._settings, quality_share=1.0)
    guard.news.count = lambda result: heard.update([result])
    engine.ask(four_logs("Ships and what they made."), tokens=ANSWER)
    while engine.scheduler.has_requests():
        engine.llm.llm_engine.step()
    return dict(heard)


def batch(engine: Any) -> dict[str, Any]:
    """Several at once: one that is decoding by guesses while others are admitted with rows."""
    prompts = [recipient("Barrel").replace("few", word) for word in ("three", "four", "five", "six")]
    before = counted(engine)["confirmed"]
    together = [told(each) for each in engine.ask_all(prompts, salt="tenant", tokens=ANSWER)]
    confirmed = counted(engine)["confirmed"] - before
    alone = [told(engine.ask(prompt, salt="cold", reuse="off", tokens=ANSWER)) for prompt in prompts]
    return {"together": together, "alone": alone, "confirmed": confirmed}


if __name__ == "__main__":
    write_findings(main)
