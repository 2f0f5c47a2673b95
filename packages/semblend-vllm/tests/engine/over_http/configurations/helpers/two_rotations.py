"""The program of ``test_two_rotations.py``: a model whose layers turn keys differently."""

from __future__ import annotations

from typing import Any

from configuration import balanced, found_in
from engine_process import new_engine
from texts import donor

from semblend_core.kv import Rotation, RotationProof
from semblend_core.testing import write_findings


def main(model: str) -> dict[str, Any]:
    settings = {"store_host_bytes": "512MiB", "quality_tier": "fast"}
    engine = new_engine(model=model, settings=settings, disable_hybrid_kv_cache_manager=True)
    (group,) = engine.scheduler.kv_cache_config.kv_cache_groups
    found = {"window": group.kv_cache_spec.sliding_window} | found_in(engine)
    found["says"] = engine.worker._proof.result.says
    found["balanced"] = balanced(engine)
    engine.check_integrity()
    found["wrong"] = {kind: wrong_in(engine, kind) for kind in ("sliding_attention", "full_attention")}
    return found


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
    write_findings(main)
