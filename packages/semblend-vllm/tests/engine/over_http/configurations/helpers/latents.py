"""The program of ``test_latents.py``: a model with latent attention (MLA)."""

from __future__ import annotations

from typing import Any

from configuration import found_in
from engine_process import new_engine

from semblend_core.testing import write_findings

SOUND_OPERATORS = ["all", "-rotary_embedding"]
"""vLLM's own operator for CPUs turns keys wrongly that lie beside their latents, and then the self-test refuses."""


def main(model: str) -> dict[str, Any]:
    keep_prefix_cache()
    engine = new_engine(
        model=model,
        settings={"store_host_bytes": "512MiB"},
        compilation_config={"custom_ops": SOUND_OPERATORS},
        attention_backend="CPU_MLA",  # On CPUs with AMX vLLM would choose one that takes no float32.
    )
    (group,) = engine.scheduler.kv_cache_config.kv_cache_groups
    found = {"kind": type(group.kv_cache_spec).__name__} | found_in(engine, faults=("scatter", "correction"))
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


if __name__ == "__main__":
    write_findings(main)
