"""The program of ``test_windows.py``: a model with sliding windows, all of whose KV vLLM is told to keep."""

from __future__ import annotations

from typing import Any

from configuration import balanced, found_in
from engine_process import new_engine

from semblend_core.testing import write_findings


def main(model: str) -> dict[str, Any]:
    settings = {"store_host_bytes": "512MiB", "quality_tier": "fast"}  # The other tier would correct, and declines.
    engine = new_engine(model=model, settings=settings, disable_hybrid_kv_cache_manager=True)
    (group,) = engine.scheduler.kv_cache_config.kv_cache_groups
    found = {"window": group.kv_cache_spec.sliding_window} | found_in(engine)
    found["balanced"] = balanced(engine)
    engine.check_integrity()
    return found


if __name__ == "__main__":
    write_findings(main)
