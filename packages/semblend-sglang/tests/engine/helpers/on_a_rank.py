"""What tests do inside the scheduler's process of each rank. SGLang calls these there with its scheduler."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from semblend_core.kv import Rotation, RotationProof
from semblend_sglang.compat import hooks

_undo: list[tuple[Any, str, Any]] = []


def called(scheduler: Any, call: str, folder: str, **arguments: Any) -> None:
    """A method of SGLang's scheduler, for its remote calls: what ``call`` returned is left in ``folder``."""
    found = globals()[call](scheduler, **arguments)
    Path(folder, f"{_rank(scheduler)}.json").write_text(json.dumps(found))


def wait_for_disks(scheduler: Any) -> None:
    """How long a busy test machine reads from its disk is not what is tested."""
    scheduler.tree_cache.semblend._loading._waits.coming = lambda *_, **__: "coming"


def state(scheduler: Any, tenant: str) -> dict[str, Any]:
    """What must be the same at all ranks, and what this one keeps of ``tenant``."""
    cache = scheduler.tree_cache
    side = cache.semblend
    side.check_integrity()
    shadow, kept = side.lineages.shadow, side.donors.kept
    if kept is not None:
        kept.flush()
    return {
        "heads": side.pool.shape.kv_heads,
        "proved": side.self_test.passed,
        "requests": len(side.requests),
        "loads": len(side.landing.loads),
        "free": cache.token_to_kv_pool_allocator.available_size(),
        "evictable": [cache.evictable_size(), cache.protected_size()],
        "lineages": [len(side.lineages.book), shadow.evictable_tokens, shadow.held_tokens, shadow.turnover],
        "stored": None if kept is None else kept.store.held_by(tenant).stored,
    }


def break_at(scheduler: Any, rank: int, what: str) -> None:
    """From now on ``what`` fails at one rank, until ``mend``."""
    if _rank(scheduler) != rank:
        return
    side = scheduler.tree_cache.semblend
    owner, name = {
        "lookup": (side.provider, "lookup"),
        "in_place": (side._decisions, "_find_in_place"),
        "sources": (side._loading, "_sources"),
        "move": (side.pool, "move_slots"),
        "look": (side.pool, "keys_at"),
        "capture": (side.pool, "take_slots"),
        "rows": (hooks, "_make_with_rows"),
    }[what]
    _undo.append((owner, name, getattr(owner, name)))
    setattr(owner, name, _fail)


def record_kv(scheduler: Any, file: str) -> None:
    """The KV of the next prompt is left in ``file`` when all of it is computed: [layers, tokens, heads, components]."""
    cache = scheduler.tree_cache
    checkpoint = cache.checkpoint

    def noting(req: Any, *, up_to: int, **kwargs: Any) -> None:
        prompt = len(req.origin_input_ids)
        if up_to >= prompt:
            del cache.checkpoint
            pool = cache.semblend.pool
            kv = pool.take_slots(cache.semblend_row(req)[:prompt].long())
            start = pool.rotation.start
            parts = {"keys": kv.keys[..., start:], "latents": kv.keys[..., :start], "values": kv.values}
            torch.save({name: part for name, part in parts.items() if part is not None}, file)
        checkpoint(req, up_to=up_to, **kwargs)

    cache.checkpoint = noting


def pool(scheduler: Any) -> dict[str, Any]:
    """What SGLang keeps KV in, and for which layers."""
    runner = scheduler.tp_worker.model_runner
    windows = [each.sliding_window_size for each in runner.model.modules() if type(each).__name__ == "RadixAttention"]
    kind = type(runner.token_to_kv_pool).__name__
    return {"kind": kind, "windows": windows, "positions_of_three": scheduler.model_config.model_is_mrope}


def self_test(scheduler: Any) -> dict[str, Any]:
    """What the last prompts have shown."""
    result = scheduler.tree_cache.semblend.capturing._proof.result
    return {"failed": result.failed, "says": result.says}


def choose_tier(scheduler: Any, tier: str) -> None:
    fitting = scheduler.tree_cache.semblend._fitting
    fitting._settings = replace(fitting._settings, quality_tier=tier)


def mistake(scheduler: Any, kind: str) -> None:
    """From now on the self-test takes layers of this kind for ones that turn a little otherwise."""
    config = scheduler.model_config.hf_text_config.to_dict()
    parameters = dict(config["rope_parameters"])
    parameters[kind] = parameters[kind] | {"rope_theta": parameters[kind]["rope_theta"] / 2}
    rotations = Rotation.by_layer(config | {"rope_parameters": parameters}, len(config["layer_types"]))
    scheduler.tree_cache.semblend.capturing._proof = RotationProof(*rotations)


def mend(scheduler: Any) -> None:
    while _undo:
        setattr(*_undo.pop())


def _rank(scheduler: Any) -> int:
    ranks = scheduler.tree_cache.semblend.ranks
    return 0 if ranks is None else int(ranks.rank)


def _fail(*_: Any, **__: Any) -> None:
    raise OSError("broken by a test")
