"""What a prompt's KV is when its answer begins, as it lies in the engine's pool."""

from __future__ import annotations

from typing import Any

from semblend_core.kv import DonorKv


def kv_of(engine: Any, prompt: str, **how: Any) -> DonorKv:
    """Of all the prompt's tokens, in the order of the layers; ``how`` as ``engine.ask`` takes it."""
    worker, seen = engine.worker, []
    capture = worker.capture

    def look(work: Any) -> None:
        capture(work)
        for request in engine.scheduler.running:
            if request.num_computed_tokens >= request.num_prompt_tokens and not seen:
                blocks = engine.scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]
                seen.append(worker._memory.gather(blocks, request.num_prompt_tokens))

    worker.capture = look
    try:
        engine.ask(prompt, tokens=2, **how)
    finally:
        del worker.capture
    return seen[0]
