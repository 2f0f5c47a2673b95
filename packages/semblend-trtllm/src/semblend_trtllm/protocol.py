"""What this adapter relies on of TensorRT-LLM's objects, as types of our own.

TensorRT-LLM cannot be installed everywhere, so no other module names its classes: whatever has these attributes will
do, and the tests hold TensorRT-LLM's own to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class EngineRequest(Protocol):
    """``LlmRequest``. Never kept: behind it is memory of the engine's, which goes with the request."""

    request_id: int
    prompt_len: int

    def get_tokens(self, beam: int) -> list[int]: ...


class StepRequest(Protocol):
    """``RequestData``: one request of the step that is about to run."""

    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    """Tokens with KV. In the first report of a request, without those that the connector promised."""
    num_scheduled_tokens: int


class StepOutput(Protocol):
    """``SchedulerOutput``."""

    new_requests: Sequence[StepRequest]
    """Each is here once, when it is scheduled first."""
    cached_requests: Sequence[StepRequest]


class LlmArguments(Protocol):
    """``TorchLlmArgs``, which both halves are made with. What else is read of it may be missing in some releases."""

    model: Any
    kv_cache_config: Any
