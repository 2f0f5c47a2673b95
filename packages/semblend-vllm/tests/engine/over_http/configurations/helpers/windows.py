"""The program of ``test_windows.py``: a model with sliding windows, all of whose KV vLLM is told to keep."""

from __future__ import annotations

from typing import Any

from engine_process import asked, fault, keep_documents, new_engine, run
from texts import recipients


def main(model: str) -> dict[str, Any]:
    settings = {"store_host_bytes": "512MiB", "quality_tier": "fast"}  # The other tier would correct, and declines.
    engine = new_engine(model=model, settings=settings, disable_hybrid_kv_cache_manager=True)
    (group,) = engine.scheduler.kv_cache_config.kv_cache_groups
    found: dict[str, Any] = {"window": group.kv_cache_spec.sliding_window}
    keep_documents(engine)
    found["answers"] = {name: asked(engine, prompt) for name, prompt in recipients().items()}
    found["load"] = fault(engine, "scatter", 0)
    engine.check_integrity()
    return found


if __name__ == "__main__":
    run(main)
