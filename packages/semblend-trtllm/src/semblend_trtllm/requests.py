"""What is remembered of one of TensorRT-LLM's requests, and which of them take part."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from semblend_core import DeclineReason, Namespace, Settings, Span
from semblend_core.serving import CaptureOrder, Claim, Namespaces, RequestLife, may_share
from semblend_trtllm import compat
from semblend_trtllm.protocol import EngineRequest


@dataclass(eq=False)
class TrtllmRequest(RequestLife):
    """A request until its prompt is computed; behind that nothing of it matters here."""

    block_ids: list[int] = field(default_factory=list)
    promised: int = 0
    """Tokens of the claim that the engine counts on, until its first step has told of them."""
    ordered: bool = False
    """Its load was given to the worker."""
    computed: bool = False
    """The step that completes its prompt is built."""
    mentioned: float = field(default_factory=time.monotonic)


@dataclass
class OwnedCapture(CaptureOrder):
    """A capture that can be taken back when its request ends."""

    request_id: str = ""


class Follower:
    """Makes the record of a request from TensorRT-LLM's, by one function for capture and lookup."""

    def __init__(self, namespaces: Namespaces, settings: Settings) -> None:
        self._namespaces, self._settings = namespaces, settings
        self._epoch = os.urandom(8).hex()
        """Adapters' numbers mean something in this process only."""

    def __call__(self, request: EngineRequest) -> TrtllmRequest | DeclineReason:
        reason = compat.why_not_followed(request)
        if reason is not None:
            return reason
        namespace = self.namespace(compat.adapter_of(request), compat.salt_of(request))
        if not may_share(self._settings, namespace):
            return DeclineReason.NO_SALT
        prompt = request.get_tokens(0)[: request.prompt_len]
        return TrtllmRequest(None, str(request.request_id), namespace, prompt)

    def namespace(self, adapter: int | None = None, salt: str | None = None) -> Namespace:
        return self._namespaces.of(None if adapter is None else f"{adapter}@{self._epoch}", salt)


def exact_claim(span: Span, length: int) -> Claim:
    """The first ``length`` tokens of a span whose donor begins as the prompt does: nothing of it is computed."""
    start = span.target_start
    return Claim(start, start + length, (Span(start, span.donor_id, span.donor_start, length),), ())
