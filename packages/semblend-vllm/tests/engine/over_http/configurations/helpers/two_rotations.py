"""The program of ``test_two_rotations.py``: a model whose layers turn keys differently."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine_process import asked, counted, fault, keep_documents, new_engine, run, told
from seen_kv import apart, kv_of
from several import batch, churn
from texts import donor, four_logs, recipient, recipients

from semblend_core.kv import Rotation, RotationProof


def main(model: str) -> dict[str, Any]:
    settings = {"store_host_bytes": "512MiB", "quality_tier": "fast"}
    engine = new_engine(model=model, settings=settings, disable_hybrid_kv_cache_manager=True)
    (group,) = engine.scheduler.kv_cache_config.kv_cache_groups
    found: dict[str, Any] = {"window": group.kv_cache_spec.sliding_window}
    keep_documents(engine)
    found["proved"] = engine.worker._proof.result.says
    found["answers"] = {name: asked(engine, prompt) for name, prompt in recipients().items()}
    found["other"] = told(engine.ask(recipient("Barrel"), salt="other"))
    found["moved"] = moved(engine)
    found["load"] = fault(engine, "scatter", 0)
    found["batch"] = batch(engine)
    found["churn"] = churn(engine)
    found["balanced"] = balanced(engine)
    engine.check_integrity()
    found["wrong"] = {kind: wrong_in(engine, kind) for kind in ("sliding_attention", "full_attention")}
    return found


def balanced(engine: Any) -> dict[str, Any]:
    """What the tier that corrects makes of one document and of four."""
    admission = engine.side.admission
    admission._settings = replace(admission._settings, quality_tier="balanced")
    counts = [counted(engine)]
    for prompt in (recipient("Barrel").replace("few", "some"), four_logs("Some logs of ships.")):
        engine.ask(prompt, tokens=1)
        counts.append(counted(engine))
    return {"counted": counts}


def moved(engine: Any) -> dict[str, Any]:
    """How far K and V are from cold ones, by layer."""
    prompt = recipient("Barrel").replace("few", "very few")
    before = counted(engine)["confirmed"]
    reused = kv_of(engine, prompt, salt="tenant")
    confirmed = counted(engine)["confirmed"] - before
    cold = kv_of(engine, prompt, salt="cold", reuse="off")
    return {
        "confirmed": confirmed,
        "tokens": cold.tokens,
        "keys": apart(reused.keys, cold.keys),
        "values": apart(reused.values, cold.values),
    }


def wrong_in(engine: Any, kind: str) -> dict[str, Any]:
    """What the self-test says of the engine's KV where layers of this kind are thought to turn a little otherwise."""
    config = engine.llm.llm_engine.vllm_config.model_config.hf_text_config.to_dict()
    parameters = dict(config["rope_parameters"])
    parameters[kind] = parameters[kind] | {"rope_theta": parameters[kind]["rope_theta"] / 2}
    rotations = Rotation.by_layer(config | {"rope_parameters": parameters}, len(config["layer_types"]))
    engine.worker._proof = proof = RotationProof(*rotations)
    for word in ("Apple", "Pear", "Plum"):
        engine.ask(donor(word), salt=kind, tokens=1)
        engine.settle()
    return {"failed": proof.result.failed, "says": proof.result.says}


if __name__ == "__main__":
    run(main)
