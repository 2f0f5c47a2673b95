"""vLLM in a process of its own for one program: see ``semblend_core.testing.run_program``.

An engine of another shape would take the parallel groups of the process that all other tests share.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import on_a_rank
from texts import donor, four_logs, logs

HERE = Path(__file__).parent


def new_engine(**options: Any) -> Any:
    """The tests' engine, with workers in this process or in others."""
    spec = importlib.util.spec_from_file_location("engine_conftest", HERE.parents[2] / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    for name, value in module.SETTINGS.items():
        os.environ.setdefault(name, value)

    class RankedEngine(module.Engine):  # type: ignore[misc, name-defined]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            orders = getattr(getattr(self.side, "admission", None), "fetch_orders", None)
            if orders is not None:  # How long a busy test machine reads from its disk is not what is tested.
                orders._waits.coming = lambda request_id, tokens, *, its_turn: "coming"

        def settle(self) -> None:
            if self.side._neighbour.is_here:
                super().settle()
                return
            # Workers elsewhere tell what they have done with a step.
            captures = self.side.keeper.captures
            while captures._coming or self.side.expects_news:
                captures._began = time.monotonic()  # Nor how long it copies.
                self.core.step()
                time.sleep(0.01)

        def on_ranks(self, call: Callable[..., Any], *arguments: Any) -> list[Any]:
            """What ``call(worker, *arguments)`` returns at each rank."""
            return list(self.llm.collective_rpc(call, args=arguments))

    return RankedEngine(**options)


def told(answer: Any) -> dict[str, Any]:
    return dataclasses.asdict(answer)


def counted(engine: Any) -> dict[str, Any]:
    stats = engine.stats()
    return {
        "confirmed": stats.confirmed_tokens,
        "declines": {str(reason): count for reason, count in stats.declines.items()},
        "donors": stats.donors,
        "outcomes": {str(kind): count for kind, count in stats.outcomes.items()},
        "probes": {str(end): count for end, count in stats.probes.items()},
    }


def keep_documents(engine: Any) -> None:
    """What ``texts.recipients`` find."""
    for prompt in (donor("Barrel"), *logs()):
        engine.ask(prompt, tokens=1)
    engine.settle()


def asked(engine: Any, prompt: str, ask: Callable[..., dict[str, Any]] | None = None) -> dict[str, Any]:
    """With reuse, cold, and with reuse off behind the reuse. ``ask``: how, if by more than ``engine.ask``."""
    ask = ask or (lambda prompt, **how: told(engine.ask(prompt, **how)))
    before = counted(engine)["confirmed"]
    reused = ask(prompt, salt="tenant")
    confirmed = counted(engine)["confirmed"] - before
    cold = ask(prompt, salt="cold", reuse="off")
    off = ask(prompt, salt="tenant", reuse="off")
    return {"reused": reused, "confirmed": confirmed, "cold": cold, "off": off}


def fault(engine: Any, what: str, rank: int, tokens: int = 8) -> dict[str, Any]:
    """Something fails at one rank alone while four documents are reused; then nothing does any more."""
    for log in logs():
        engine.ask(log, salt=what, tokens=1)
    engine.settle()
    before = counted(engine)
    engine.on_ranks(on_a_rank.break_at, rank, what)
    broken = told(engine.ask(four_logs(), salt=what, tokens=tokens))
    engine.on_ranks(on_a_rank.mend)
    engine.settle()
    between = counted(engine)
    mended = told(engine.ask(four_logs("Logs of four ships."), salt=what, tokens=tokens))
    check(engine)
    return {"before": before, "broken": broken, "between": between, "mended": mended, "after": counted(engine)}


def check(engine: Any) -> None:
    engine.side.check_integrity()
    assert len(engine.side.requests) == 0
    assert engine.stats().pinned_requests == 0
    assert not engine.scheduler.requests
