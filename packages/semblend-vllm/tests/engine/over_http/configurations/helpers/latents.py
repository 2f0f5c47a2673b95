"""The program of ``test_latents.py``: a model with latent attention (MLA)."""

from __future__ import annotations

from typing import Any

from engine_process import asked, counted, fault, keep_documents, new_engine, run, told
from seen_kv import apart, kv_of
from several import batch, churn
from texts import recipient, recipients

SOUND_OPERATORS = ["all", "-rotary_embedding"]
"""vLLM's own operator for CPUs turns keys wrongly that lie beside their latents, and then the self-test refuses."""


def main(model: str) -> dict[str, Any]:
    keep_prefix_cache()
    engine = new_engine(
        model=model, settings={"store_host_bytes": "512MiB"}, compilation_config={"custom_ops": SOUND_OPERATORS}
    )
    (group,) = engine.scheduler.kv_cache_config.kv_cache_groups
    found: dict[str, Any] = {"kind": type(group.kv_cache_spec).__name__}
    keep_documents(engine)
    found["proved"] = engine.side.self_test.passed
    found["answers"] = {name: asked(engine, prompt) for name, prompt in recipients().items()}
    found["other"] = told(engine.ask(recipient("Barrel"), salt="other"))
    found["moved"] = moved(engine)
    found["load"] = fault(engine, "scatter", 0)
    found["correction"] = fault(engine, "correction", 0)
    found["batch"] = batch(engine)
    found["churn"] = churn(engine)
    found["counted"] = counted(engine)
    engine.check_integrity()
    return found


def keep_prefix_cache() -> None:
    """vLLM turns its prefix cache off where latents lie on a CPU. On GPUs it is on, and must not be polluted."""
    from vllm.platforms.cpu import CpuPlatform

    plain = CpuPlatform.check_and_update_config.__func__

    def with_prefix_cache(cls: Any, config: Any) -> None:
        plain(cls, config)
        config.cache_config.enable_prefix_caching = True

    CpuPlatform.check_and_update_config = classmethod(with_prefix_cache)


def moved(engine: Any) -> dict[str, Any]:
    """How far latents and their rotated parts are from cold ones, by layer."""
    prompt = recipient("Barrel").replace("few", "very few")
    before = counted(engine)["confirmed"]
    reused = kv_of(engine, prompt, salt="tenant").keys
    confirmed = counted(engine)["confirmed"] - before
    cold = kv_of(engine, prompt, salt="cold", reuse="off").keys
    start = engine.worker._memory._pool.rotation.start
    return {
        "confirmed": confirmed,
        "tokens": cold.shape[1],
        "latent": apart(reused[..., :start], cold[..., :start]),
        "rotated": apart(reused[..., start:], cold[..., start:]),
    }


if __name__ == "__main__":
    run(main)
