"""The worker's half, at each of TensorRT-LLM's calls."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from semblend_core import DeclineReason, SelfTestResult, Settings
from semblend_core.kv import Rotation, StoreOptions
from semblend_core.serving import CaptureOrder, StepWork, WorkerNews
from semblend_core.serving.worker import WorkerSide
from semblend_trtllm.meeting import Meeting
from semblend_trtllm.memory import memory_of
from semblend_trtllm.support import KvGeometry

logger = logging.getLogger(__name__)


class LoadFailedError(RuntimeError):
    """KV that was promised to the engine did not land. It has no way to hear of that, so its step must not run."""


class WorkerHalf:
    def __init__(self, settings: Settings, geometry: KvGeometry, config: dict[str, Any], meeting: Meeting) -> None:
        self._settings, self._geometry, self._config, self._meeting = settings, geometry, config, meeting
        self._unstarted: list[StepWork] = []
        """Orders whose step has not begun. Mostly one; an engine that finds nothing to run may build two."""
        self._running: StepWork | None = None
        meeting.drop = self.drop

    @property
    def side(self) -> WorkerSide | None:
        return self._meeting.worker

    def register(self, pool: Any) -> None:
        """The engine's pool is there, and nothing in it is anybody's yet."""
        try:
            rotation = Rotation.from_config(self._config)
            memory = memory_of(pool, self._geometry, rotation)
            self._meeting.worker = WorkerSide(StoreOptions.from_settings(self._settings), memory, rotation, 0)
        except Exception as error:
            # The other half goes on looking up, and nothing is ever loaded.
            logger.exception("SemBlend is off: this worker's KV cannot be moved")
            refused = SelfTestResult.refused(str(error) or type(error).__name__)
            self._meeting.refusal = WorkerNews(self_test={0: refused})

    def bind(self, work: object) -> None:
        if isinstance(work, StepWork):
            self._unstarted.append(work)

    def drop(self, request_id: str) -> None:
        """The request is over: nothing is loaded into blocks that may be another's, or kept of them."""
        for work in self._unstarted:
            work.loads = [load for load in work.loads if load.request_id != request_id]
            theirs = [each for each in work.captures if getattr(each, "request_id", None) == request_id]
            work.captures = [each for each in work.captures if each not in theirs]
            self._not_kept(theirs)

    def start(self) -> None:
        """Before the forward. LoadFailedError where the engine counts on KV that did not come."""
        works, self._unstarted = self._unstarted, []
        self._running = works[-1] if works else None
        side = self.side
        if side is None:
            self._not_kept(each for work in works for each in work.captures)
            return
        # The step of earlier ones never ran, so what they were to keep was never computed.
        self._not_kept(each for work in works[:-1] for each in work.captures)
        ordered: list[str] = []
        for work in works:
            ordered += [load.request_id for load in work.loads]
            side.load(work)
        if not ordered:
            return
        news = side.take_news() or WorkerNews()
        self._meeting.hear(news)
        failed = {request_id: news.failed[request_id] for request_id in ordered if request_id in news.failed}
        if failed:
            raise LoadFailedError(
                f"KV that TensorRT-LLM counts on did not land ({failed}): its step would compute wrong tokens. The "
                "log says why"
            )

    def save(self) -> None:
        """After the forward."""
        work, self._running = self._running, None
        if self.side is not None and work is not None:
            self.side.capture(work)

    def close(self) -> None:
        if self.side is not None:
            self.side.close()

    def _not_kept(self, captures: Iterable[CaptureOrder]) -> None:
        lost = {each.name: DeclineReason.CAPTURE_FAILED for each in captures if each.donor_id is not None}
        if lost:
            self._meeting.hear(WorkerNews(lost=lost))
