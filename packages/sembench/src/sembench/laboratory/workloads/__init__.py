"""Seeded workloads by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sembench.laboratory.requests import CacheRequest
from sembench.laboratory.workloads.further import code_assistant, multi_agent
from sembench.laboratory.workloads.prompt_parts import Scene
from sembench.laboratory.workloads.published import (
    legal_review_long_context,
    low_memory_rag_stress,
    shared_system_prompt_high_reuse,
    tool_agent_session_reuse,
    workload_shift_static_vs_adaptive,
)

WORKLOADS: Mapping[str, Callable[[Scene, int], None]] = MappingProxyType(
    {
        workload.__name__: workload
        for workload in (
            low_memory_rag_stress,
            shared_system_prompt_high_reuse,
            tool_agent_session_reuse,
            legal_review_long_context,
            workload_shift_static_vs_adaptive,
            multi_agent,
            code_assistant,
        )
    }
)
MEAN_GAP_S = 2.0


def generate(workload: str, requests: int, seed: int, mean_gap_s: float = MEAN_GAP_S) -> list[CacheRequest]:
    """The same requests for the same arguments, in every process. ``mean_gap_s``: seconds between two, on average."""
    scene = Scene(workload, seed, mean_gap_s)
    WORKLOADS[workload](scene, requests)
    return scene.requests
