"""Where the two halves of one engine find each other.

On the first rank TensorRT-LLM makes both in one process, at the same time and with the same arguments. It carries
nothing from the worker back to the scheduler, so they speak directly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from semblend_core import DeclineReason, Namespace, Span, TenantReport, TokenIds
from semblend_core.serving import WorkerNews

if TYPE_CHECKING:
    from semblend_core.serving.worker import WorkerSide


class Meeting:
    """What the scheduler's half may ask of the worker's, which has no memory before the engine has registered it."""

    def __init__(self, llm_args: Any) -> None:
        self.llm_args = llm_args  # Keeps its id its own.
        self.worker: WorkerSide | None = None
        self.refusal: WorkerNews | None = None
        """What is told where there is no worker side: why."""
        self.seen: set[str] = set()
        """The halves that are here."""
        self.hear: Callable[[WorkerNews], object] = lambda news: None
        """Where the scheduler's half is told what has happened, without waiting for its next call."""
        self.catch_up: Callable[[], object] = lambda: None
        """Lets it hear what happens in the background."""
        self.drop: Callable[[str], object] = lambda request_id: None
        """Takes back what was ordered of the worker's half for a request that is over."""

    def hold(
        self, request_id: str, namespace: Namespace, spans: Sequence[Span], token_ids: TokenIds
    ) -> DeclineReason | None:
        if self.worker is None:
            return DeclineReason.ALLOCATION_FAILED
        return self.worker.hold(request_id, namespace, spans, token_ids)

    def hold_less(self, request_id: str, spans: Sequence[Span]) -> None:
        if self.worker is not None:
            self.worker.hold_less(request_id, spans)

    def let_go(self, request_id: str) -> None:
        if self.worker is not None:
            self.worker.let_go(request_id)

    def take_news(self) -> WorkerNews | None:
        if self.worker is not None:
            return self.worker.take_news()
        news, self.refusal = self.refusal, None
        return news

    def purge(self, tenant: str) -> TenantReport:
        return TenantReport() if self.worker is None else self.worker.purge(tenant)

    def held_by(self, tenant: str) -> TenantReport:
        return TenantReport() if self.worker is None else self.worker.held_by(tenant)


_lock = threading.Lock()
_waiting: dict[int, Meeting] = {}


def meet(llm_args: Any, half: str) -> Meeting:
    """The meeting of the engine with these arguments. It is over for newcomers when both halves are there."""
    with _lock:
        meeting = _waiting.get(id(llm_args))
        if meeting is None or half in meeting.seen:  # The same half again: another engine with the same arguments.
            meeting = _waiting[id(llm_args)] = Meeting(llm_args)
        meeting.seen.add(half)
        if len(meeting.seen) == 2:
            del _waiting[id(llm_args)]
        return meeting
