"""The worker's half, for engines whose scheduler and workers are apart (needs torch: extra ``gpu``).

An adapter gives a :class:`KvMemory`, its engine's KV behind three operations, and calls :class:`WorkerSide` before,
inside and after a forward.
"""

from semblend_core.serving.worker.forward_ends import ForwardEnds, forward_ends_on
from semblend_core.serving.worker.layered import LayeredMemory, memory_by_rotation
from semblend_core.serving.worker.looking import Look
from semblend_core.serving.worker.memory import KvMemory, LayerCorrection, Move, PagedMemory
from semblend_core.serving.worker.side import WorkerSide

__all__ = [
    "ForwardEnds",
    "KvMemory",
    "LayerCorrection",
    "LayeredMemory",
    "Look",
    "Move",
    "PagedMemory",
    "WorkerSide",
    "forward_ends_on",
    "memory_by_rotation",
]
