"""The program of ``test_latents.py``: a model with latent attention (MLA)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from archive import first, recipient
from programs import run
from ranked_engine import RankedEngine, import_sglang, in_a_fork
from scenes import FOUR, ONE, asked, conversation, crowd, fault

from semblend_core import tenant_of_salt

FAULTS = ("lookup", "sources", "move")


def main(model: str, folder: Path) -> dict[str, Any]:
    import_sglang()
    attend_to_latents()
    return in_a_fork(session, model, folder, SEMBLEND_AUDIT_PATH=str(folder / "audit"))


def attend_to_latents() -> None:
    """Without a prefix SGLang makes keys and values of latents, and attends to those.

    Its attention for a CPU looks for them in the pool, where latents lie, and fails. With a prefix, and in captured
    graphs, SGLang attends to the latents themselves. Here it always does.
    """
    from sglang.srt.models.deepseek_common import attention_backend_handler as handler
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    handler.AttentionBackendRegistry.register("torch_native", lambda *_: AttnForwardMethod.MLA)


def session(model: str, folder: Path) -> dict[str, Any]:
    engine = RankedEngine(Path(model), folder / "audit", 1)
    found: dict[str, Any] = {"answers": {case: asked(engine, case) for case in (ONE, FOUR)}}
    found["conversation"] = conversation(engine)
    found["proved"] = state(engine)["proved"]
    found["moved"] = moved(engine, folder)
    found["batch"] = batch(engine)
    found["crowd"] = crowd(engine)
    found["faults"] = {what: fault(engine, what, 0) for what in FAULTS}
    engine.let_scheduler_idle()  # Where SGLang counts its slots.
    found["at_the_end"] = state(engine)
    engine.engine.flush_cache()
    found["emptied"] = state(engine)
    engine.close()
    return found


def state(engine: RankedEngine) -> dict[str, Any]:
    (only,) = engine.on_ranks("state", tenant=tenant_of_salt("tenant"))
    return dict(only)


def moved(engine: RankedEngine, folder: Path) -> dict[str, Any]:
    """How far latents and their rotated parts are from cold ones, by layer."""
    prompt, before = recipient(ONE).replace("closely", "very closely"), engine.confirmed()
    reused, start = kv_of(engine, folder / "reused", prompt, salt="tenant")
    confirmed = engine.confirmed() - before
    cold, _ = kv_of(engine, folder / "cold", prompt, salt="cold, moved", wish="off")
    return {
        "confirmed": confirmed,
        "tokens": cold.shape[1],
        "latent": apart(reused[..., :start], cold[..., :start]),
        "rotated": apart(reused[..., start:], cold[..., start:]),
    }


def kv_of(engine: RankedEngine, file: Path, prompt: str, **how: Any) -> tuple[torch.Tensor, int]:
    engine.on_ranks("record_kv", file=str(file))
    engine.ask(prompt, tokens=1, **how)
    found = torch.load(file)
    return found["keys"], found["start"]


def apart(one: torch.Tensor, other: torch.Tensor) -> list[float]:
    """The mean distance, as a share of their size."""
    distance = (one - other).square().mean((1, 2, 3)).sqrt()
    return [float(each) for each in distance / other.square().mean((1, 2, 3)).sqrt()]


def batch(engine: RankedEngine) -> dict[str, Any]:
    """Several at once that reuse something."""
    engine.ask(first(), salt="batch", tokens=1)
    prompts, before = [recipient(ONE, f"Question {n}?") for n in range(3)], engine.confirmed()
    together = engine.ask(prompts, salt="batch")
    confirmed = engine.confirmed() - before
    alone = [engine.ask(prompt, salt=f"cold, {n}", wish="off") for n, prompt in enumerate(prompts)]
    return {"together": together, "alone": alone, "confirmed": confirmed}


if __name__ == "__main__":
    run(main)
