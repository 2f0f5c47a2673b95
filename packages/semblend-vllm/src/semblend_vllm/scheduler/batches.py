"""vLLM's schedulers, with room for rows.

Before a step the plans of the next waiting requests are made, and as much of the batch as their rows need is kept free.
Then vLLM schedules as always; whoever it admitted with a claim gets its rows into the same step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from semblend_core.serving import Claim, StepWork, WorkerNews, shown_as_cached
from semblend_vllm.compat import scheduling as compat
from semblend_vllm.compat.timing import tell_scheduled
from semblend_vllm.scheduler.background import Background
from semblend_vllm.scheduler.comparing import Comparing
from semblend_vllm.scheduler.requests import VllmRequest
from semblend_vllm.scheduler.rows import InVain, RowRoom
from semblend_vllm.scheduler.side import SchedulerSide

logger = logging.getLogger(__name__)

_NO_HALF = object()
LOOK_AHEAD = 8
"""Waiting requests that are planned before a step; more are rarely admitted in one."""


class _WithRows:
    """Mixed into a vLLM scheduler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Another connector, or one around ours, has no such half.
        side = getattr(self.connector, "scheduler_side", _NO_HALF)  # type: ignore[attr-defined]
        if side is _NO_HALF:
            logger.warning("SemBlendScheduler runs without SemBlendConnectorV1, so it is vLLM's own: nothing is reused")
        self._side: SchedulerSide | None = side if isinstance(side, SchedulerSide) else None
        self._in_vain = InVain()
        # Without chunks a prompt waits until a whole step is free: room kept for others could let it wait for ever.
        self._look_ahead = LOOK_AHEAD if compat.is_chunked(self) else 1
        if self._side is not None:
            self.connector.bind_kv_cache_manager(self.kv_cache_manager)  # type: ignore[attr-defined]
            self._background, self._comparing = Background(self, self._side), Comparing(self, self._side)
            self._side.admission.room = RowRoom(
                self.max_num_scheduled_tokens,  # type: ignore[attr-defined]
                self.max_num_running_reqs,  # type: ignore[attr-defined]
                chunked=compat.is_chunked(self),
                held_sequences=lambda: compat.held_sequences(self),
                hold_place=lambda: compat.hold_place(self),
                is_paused=lambda: compat.is_paused(self),
            )

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        side = self._side
        if side is None:
            return super().schedule(*args, **kwargs)  # type: ignore[misc, no-any-return]
        with side.turn:
            return self._schedule(side, *args, **kwargs)

    def _schedule(self, side: SchedulerSide, *args: Any, **kwargs: Any) -> SchedulerOutput:
        side.costs.begin_step()
        side.admission.round.begin()
        side.catch_up()
        self._background.step_aside()
        self._comparing.step_aside()
        self._start_failed_over(side, None)
        released = self._end_long_claims(side)
        with self._room_kept_free(side, released) as kept:
            output: SchedulerOutput = super().schedule(*args, **kwargs)  # type: ignore[misc]
        side.admission.end_step(lambda: compat.blocks_are_freed(self))
        was_empty = output.total_num_scheduled_tokens == 0
        admitted = self._add_rows(output, side)
        self._in_vain.note(kept, admitted or len(side.long_claims) > 0)
        compat.finish_step(self, output, was_empty)
        tell_scheduled(side.costs, output)
        work = output.kv_connector_metadata
        if isinstance(work, StepWork):
            work.computes = output.total_num_scheduled_tokens > 0  # It may be nothing but rows.
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        side = self._side
        if side is None:
            return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        with side.turn:
            return self._update(side, scheduler_output, model_runner_output)

    def _update(self, side: SchedulerSide, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        told = model_runner_output.kv_connector_output
        side.costs.step_finished(scheduler_output, side.forward_ended(scheduler_output.kv_connector_metadata))
        if told is not None and isinstance(told.kv_connector_worker_meta, WorkerNews):
            # Before vLLM takes the results for good: those of a request whose load failed are not.
            side.hear(told.kv_connector_worker_meta)
            told.kv_connector_worker_meta = None
            self._start_failed_over(side, model_runner_output)
        if isinstance(scheduler_output.kv_connector_metadata, StepWork):
            side.step_ended(scheduler_output.kv_connector_metadata)
        self._comparing.hear(scheduler_output, model_runner_output)
        answer = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        self._background.go_on()
        if not self._background.is_busy:
            self._comparing.go_on()
        return answer

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """The connector hears of it from the KV cache manager. Requests that wait for rows would hold blocks of it."""
        side = self._side
        if side is None:
            return bool(super().reset_prefix_cache(*args, **kwargs))  # type: ignore[misc]
        with side.turn:
            return self._reset(side, *args, **kwargs)

    def _reset(self, side: SchedulerSide, *args: Any, **kwargs: Any) -> bool:
        self._background.stop()
        self._comparing.stop()
        side.give_up_waiting()
        self._start_failed_over(side, None)
        compat.end_waiting(self, side.long_claims.take_ended())
        with compat.blocks_freed_at_once(self):
            return bool(super().reset_prefix_cache(*args, **kwargs))  # type: ignore[misc]

    def _start_failed_over(self, side: SchedulerSide, output: Any) -> None:
        for life in side.take_failed():
            claim = life.claim
            waited = side.long_claims.drop(life.request_id)
            compat.start_over(self, life.request, output)
            side.requests.start_over(life)
            if claim is not None:
                # Rows count as computed once they all are.
                found = claim.reused_tokens if waited is None else waited.told
                compat.count_as_found(self, life.request, before=found, now=0, shown=0)

    @contextmanager
    def _room_kept_free(self, side: SchedulerSide, released: int) -> Iterator[bool]:
        """Whether room is kept for requests that may be admitted. ``released``: those who have a place already."""
        room = side.admission.room
        assert room is not None
        running = compat.held_sequences(self) + released
        held_tokens, held_sequences = self._needed_by_long_claims(side, room)
        room.tokens, room.sequences = self._needed(side, room, running, held_tokens, held_sequences)
        limits = compat.step_limits(self)
        compat.set_step_limits(self, limits.less(held_tokens + room.tokens, held_sequences + room.sequences))
        try:
            yield room.sequences > 0
        finally:
            compat.set_step_limits(self, limits)

    def _needed(
        self, side: SchedulerSide, room: RowRoom, running: int, held_tokens: int, held_sequences: int
    ) -> tuple[int, int]:
        """Tokens and sequences for the rows of the next waiting requests, as far as others leave room."""
        tokens = sequences = admitted = 0
        for request in islice(compat.waiting_requests(self), self._look_ahead):
            admitted += 1
            if not side.may_plan(request):
                continue
            side.look(request)
            claim = side.prepare(request, compat.exact_prefix_tokens(self, request))
            if claim is None:
                continue
            others = running + admitted
            rows, row_tokens = len(claim.first_rows), claim.first_row_tokens
            too_many = others + held_sequences + sequences + rows > room.most_sequences
            rest = 0 if room.chunked or claim.probing else request.num_tokens - claim.end
            if too_many or others + held_tokens + tokens + row_tokens + rest > room.most_tokens:
                break  # It gets them over several steps, in the place that will be its own.
            tokens, sequences = tokens + row_tokens, sequences + rows
        return (0, 0) if self._in_vain.skip() else (tokens, sequences)

    @staticmethod
    def _needed_by_long_claims(side: SchedulerSide, room: RowRoom) -> tuple[int, int]:
        """The same for requests that wait for their rows: tokens, and for each the place that will be its own."""
        tokens, rows = side.long_claims.due()
        others = sum(claim.left_tokens for claim in side.long_claims.unfinished())
        return min(tokens + others, max(tokens, room.most_tokens // 2)), rows + len(side.long_claims)

    def _end_long_claims(self, side: SchedulerSide) -> int:
        """Requests that vLLM may schedule now, so many."""
        room = side.admission.room
        assert room is not None
        # Beside their rows all who wait need a place of their own.
        places = room.most_sequences - compat.held_sequences(self) - len(side.long_claims)
        most_tokens, most_rows = (0, 0) if room.is_paused() else (room.most_tokens // 2, max(0, places))
        released = side.long_claims.take_ready(most_tokens, most_rows)
        for ready in released:
            compat.go_on_from(ready.life.request, ready.claim.end)
            compat.end_waiting(self, [ready.life.request_id])
            self._count_as_found(side, ready.life, ready.claim, ready.told)
        compat.end_waiting(self, side.long_claims.take_ended())
        return len(released)

    def _add_rows(self, output: SchedulerOutput, side: SchedulerSide) -> bool:
        """Whether a request was admitted with rows."""
        for life, rows in side.long_claims.take_chosen():
            row_ids = compat.add_rows(self, output, life.request, rows)
            self.finished_req_ids.update(row_ids)  # type: ignore[attr-defined]
        work = output.kv_connector_metadata
        if work is None or not work.loads:
            return False
        claims = side.claims_in(work)
        for life, claim in claims:
            self._add_rows_of(output, side, life, claim)
        return any(claim.rows for _, claim in claims)

    def _add_rows_of(self, output: SchedulerOutput, side: SchedulerSide, life: VllmRequest, claim: Claim) -> None:
        row_ids = compat.add_rows(self, output, life.request, claim.rows)
        # Workers drop finished requests at the beginning of the step that names them, which is the next one.
        self.finished_req_ids.update(row_ids)  # type: ignore[attr-defined]
        self._count_as_found(side, life, claim, claim.length)

    def _count_as_found(self, side: SchedulerSide, life: VllmRequest, claim: Claim, told: int) -> None:
        """Of what vLLM was told is found, rows are computed."""
        reused = claim.reused_tokens
        compat.count_as_found(self, life.request, before=told, now=reused, shown=shown_as_cached(side.settings, reused))


class SyncScheduler(_WithRows, Scheduler):  # type: ignore[misc]
    """vLLM's scheduler for ``--no-async-scheduling``."""


class OverlappingScheduler(_WithRows, AsyncScheduler):  # type: ignore[misc]
    """vLLM's default, which plans a step while the one before it runs."""


class SemBlendScheduler:
    """What ``--scheduler-cls`` names: the one of the two above that goes with vLLM's other settings."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        chosen = OverlappingScheduler if config.scheduler_config.async_scheduling else SyncScheduler
        return chosen(*args, **kwargs)
