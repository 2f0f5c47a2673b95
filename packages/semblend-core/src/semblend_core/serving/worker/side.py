"""The worker's half: keeps prompts' KV, and brings it back where a plan wants it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from semblend_core.contract import (
    DeclineReason,
    Namespace,
    SelfTestResult,
    Span,
    TenantReport,
    TokenIds,
    digest_at_rank,
)
from semblend_core.kv import DonorKv, DonorStore, Rotation, RotationProof, StoreOptions
from semblend_core.kv.fetching import load_failure
from semblend_core.kv.recovery import LeftDonor, recover_in_background
from semblend_core.kv.store import DonorKey, Gone, StoreDecline, TransferFailedError, TransferPendingError
from semblend_core.recompute import Scores
from semblend_core.serving.messages import (
    CaptureOrder,
    CorrectionOrder,
    Landed,
    LoadOrder,
    ProbeOrder,
    StepWork,
    WorkerNews,
)
from semblend_core.serving.worker import proof
from semblend_core.serving.worker.fetched import IDLE_WAIT_S, FetchedAhead
from semblend_core.serving.worker.forward_ends import forward_ends_on
from semblend_core.serving.worker.looking import Look
from semblend_core.serving.worker.memory import KvMemory, LayerCorrection

logger = logging.getLogger(__name__)

MOST_UNDER_WAY = 16
"""Forwards whose ends are known and not asked for, as by a scheduler in another process."""


class WorkerSide:
    """Loads run before a forward and captures after it, on the engine's thread; the store copies on threads of its own.

    Nothing raises into the engine: what fails is told to the scheduler's half, which serves the request cold.
    """

    def __init__(
        self,
        options: StoreOptions,
        memory: KvMemory,
        rotation: Rotation | Sequence[Rotation],
        rank: int,
        unused_block: int = 0,
    ) -> None:
        """``rank``: of those that have some of the heads each. ``unused_block``: one that the engine never reads.

        ``rotation``: of all layers, or of each.
        """
        self._memory, self._rank = memory, rank
        self._lock = threading.Lock()
        self._news = WorkerNews()
        self._weights = self._least_weights = 0
        """How often they have changed: as orders say, and as orders must say to be carried out."""
        self._invalid_blocks: set[int] = set()
        self._corrections: dict[str, LayerCorrection] = {}
        """By request: of the step under way."""
        self._looks: dict[str, Look] = {}
        """The same."""
        self._forwards = forward_ends_on(memory.device)
        self._ends: dict[int, Any] = {}
        """Of forwards, by the orders that came with them."""
        # Compiles what a first load would otherwise wait for, too.
        rotations = (rotation,) * memory.layers if isinstance(rotation, Rotation) else tuple(rotation)
        refused = proof.of_the_way_in(memory, rotations, unused_block)
        self._proof = None if refused else RotationProof(*rotations)
        if refused:
            self._news.self_test[rank] = SelfTestResult.refused(refused)
        self._store = DonorStore(options, on_gone=self._donor_gone)
        self._store.prepare(memory.token_bytes)
        self._fetched = FetchedAhead(self._store)
        if options.disk_path is not None or options.lmcache_path is not None:
            recover_in_background(self._store, self._recovered)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's KV, all layers together."""
        return self._memory.token_bytes

    def no_correction(self, reason: str) -> None:
        """KV cannot be corrected inside the forward."""
        with self._lock:
            self._news.no_correction = reason

    def new_weights(self) -> None:
        """The engine's weights have changed. Orders that were given before are void, since their donors are.

        On the engine's thread. The scheduler's half may know already; if not, it hears of it, and forgets its donors.
        """
        with self._lock:
            self._least_weights = self._news.weights = self._weights + 1
        self._memory.learned = None  # It was fitted for the weights before.

    def hold(
        self, request_id: str, namespace: Namespace, spans: Sequence[Span], token_ids: TokenIds
    ) -> DeclineReason | None:
        """Keep donors' KV at hand for a request until it is loaded or let go; why not, where it is not at hand.

        For engines that cannot be told of a load that failed. Held is only what is known to begin with ``token_ids``
        and is in memory: nothing but the device can keep it from landing. On the scheduler's thread, in this process.
        """
        try:
            return self._fetched.hold(request_id, namespace.for_rank(self._rank), spans, token_ids)
        except Exception:
            logger.exception("the KV for %s could not be held", request_id)
            return DeclineReason.LOAD_FAILED

    def hold_less(self, request_id: str, spans: Sequence[Span]) -> None:
        """The engine takes only these parts of what is held."""
        self._fetched.keep_only(request_id, spans)

    def let_go(self, request_id: str) -> None:
        """What was held for the request is not needed. Nothing happens where nothing was."""
        self._fetched.cancel(request_id)

    def load(self, work: StepWork) -> None:
        self._weights = max(self._weights, work.weights)
        self._tidy_and_fetch(work)
        self._corrections.clear()
        self._looks.clear()
        for load in work.loads:
            reason = DeclineReason.DONOR_EVICTED if self._is_void(work) else self._load(load)
            with self._lock:
                if reason is None:
                    moved = sum(span.length for span in load.spans) * self._memory.token_bytes
                    self._news.landed[load.request_id] = Landed(load.reused_tokens, moved)
                    continue
                self._news.failed[load.request_id] = reason
            if load.tell_engine:
                first = load.spans[0].target_start // self._memory.block_size
                self._invalid_blocks.update(load.block_ids[first:])
        for correct in work.corrections:
            if correct.request_id not in self._news.failed:
                self._prepare_correction(correct)
        for probe in work.probes:
            self._prepare_look(probe)
        if not work.computes:
            # If an idle engine went on asking, the threads that read and copy would hardly get to run.
            self._fetched.wait_briefly()
            self._store.wait_briefly(IDLE_WAIT_S)

    def correct(self, layer: int) -> None:
        """Between a layer's KV update and its attention, in every layer of a step."""
        for request_id, correction in list(self._corrections.items()):
            try:
                correction.apply(layer)
            except Exception:
                logger.exception("the correction of %s failed in layer %d", request_id, layer)
                del self._corrections[request_id]
                self._failed(request_id, DeclineReason.LOAD_FAILED)

    def look(self, layer: int, queries: Tensor, slots: Tensor, scale: float) -> None:
        """The same, with the queries [rows, heads, dim] of the whole batch and the slots that its KV was written to."""
        for request_id, look in list(self._looks.items()):
            if layer not in look.layers:
                continue
            try:
                look.add(layer, queries, slots, scale)
            except Exception:
                logger.exception("where %s looks in layer %d could not be seen", request_id, layer)
                del self._looks[request_id]
                self._seen(request_id, None)

    def capture(self, work: StepWork) -> None:
        """Behind the forward."""
        self._mark_end(work)
        self._corrections.clear()
        for capture in work.captures:
            if self._is_void(work):  # What it was computed behind may be of the weights before.
                self._not_kept(capture, DeclineReason.CAPTURE_FAILED)
                continue
            try:
                self._capture(capture)
            except Exception:
                logger.exception("the KV of a prompt could not be captured")
                self._not_kept(capture, DeclineReason.CAPTURE_FAILED)

    def ended(self, work: StepWork) -> float | None:
        """Since when the forward that these very orders came with has ended, by ``time.perf_counter``; None: unknown.

        For a scheduler in this process: to any other the orders are not these.
        """
        return self._forwards.ended(self._ends.pop(id(work), None))

    def forget(self, donors: Iterable[tuple[Namespace, str]]) -> None:
        for namespace, donor_id in donors:
            self._store.forget(namespace.for_rank(self._rank), donor_id)

    def take_news(self) -> WorkerNews | None:
        """Of the steps that were run. A forward is over then, what follows it perhaps not: some engines ask before."""
        self._tell_scores()
        with self._lock:
            news, self._news = self._news, WorkerNews()
        for number in self._fetched.newly_done():
            news.fetched[number] = frozenset((self._rank,))
        return news or None

    def purge(self, tenant: str, timeout: float = 30.0) -> TenantReport:
        """Drop all KV of the tenant and wait until it is gone: what there was. Any thread but the engine's."""
        return self._store.purge(tenant, timeout)

    def held_by(self, tenant: str) -> TenantReport:
        """Any thread."""
        return self._store.held_by(tenant)

    def take_invalid_blocks(self) -> set[int]:
        invalid, self._invalid_blocks = self._invalid_blocks, set()
        return invalid

    def flush(self) -> None:
        """Wait for captures under way. Tests and shutdown only."""
        self._store.flush()

    def close(self) -> None:
        self._fetched.close()
        self._store.close()

    def check_integrity(self) -> None:
        self._store.check_integrity()

    def _mark_end(self, work: StepWork) -> None:
        self._ends[id(work)] = self._forwards.mark()
        if len(self._ends) > MOST_UNDER_WAY:
            del self._ends[next(iter(self._ends))]

    def _is_void(self, work: StepWork) -> bool:
        return work.weights < self._least_weights

    def _load(self, load: LoadOrder) -> DeclineReason | None:
        try:
            fetched = self._fetched.take(load.request_id)
            fetched = fetched or self._fetched.begin(load.namespace.for_rank(self._rank), load.spans)
            if fetched is None:
                return DeclineReason.DONOR_EVICTED
            parts = [part for fetch in fetched.donors.values() for part in fetch.parts()]
            self._memory.scatter(load.block_ids, [(donor, span) for donor, spans in parts for span in spans])
        except (TransferFailedError, TransferPendingError, TimeoutError) as error:
            logger.warning("the KV for %s did not come: %s", load.request_id, error)
            return load_failure([getattr(error, "reason", None)]) or DeclineReason.LOAD_FAILED
        except Exception:
            logger.exception("the KV for %s could not be loaded", load.request_id)
            return DeclineReason.LOAD_FAILED
        return None

    def _prepare_correction(self, correct: CorrectionOrder) -> None:
        try:
            rows = np.concatenate([np.arange(start, end) for start, end in correct.rows])
            made = self._memory.correction(correct.block_ids, correct.spans, rows, correct.shift)
            self._corrections[correct.request_id] = made
        except Exception:
            # What the tier promises cannot be held: the same as a load that failed.
            logger.exception("the correction of %s could not be prepared", correct.request_id)
            self._failed(correct.request_id, DeclineReason.LOAD_FAILED)

    def _prepare_look(self, probe: ProbeOrder) -> None:
        try:
            self._looks[probe.request_id] = Look(probe, self._memory)
        except Exception:
            logger.exception("the probe of %s could not be prepared", probe.request_id)
            self._seen(probe.request_id, None)

    def _tell_scores(self) -> None:
        """Waits for the forward: its scheduler can do nothing for these requests before it knows."""
        for request_id, look in self._looks.items():
            try:
                self._seen(request_id, look.scores())
            except Exception:
                logger.exception("where %s looks could not be read", request_id)
                self._seen(request_id, None)
        self._looks.clear()

    def _seen(self, request_id: str, scores: Scores | None) -> None:
        with self._lock:
            self._news.scores[request_id] = scores

    def _failed(self, request_id: str, reason: DeclineReason) -> None:
        with self._lock:
            self._news.failed[request_id] = reason

    def _tidy_and_fetch(self, work: StepWork) -> None:
        try:
            for tenant in work.purge:
                self._store.forget_tenant(tenant)
            self.forget(work.forget)
            for namespace, donor_id, tokens in work.copied:
                self._store.note_copied(namespace.for_rank(self._rank), donor_id, tokens)
            for request_id in work.unwanted:
                self._fetched.cancel(request_id)
            for fetch in work.fetches:
                self._fetched.order(fetch, fetch.namespace.for_rank(self._rank))
        except Exception:
            logger.exception("donors could not be fetched or forgotten")

    def _capture(self, capture: CaptureOrder) -> None:
        if capture.donor_id is None:
            if self._proof is not None:
                self._prove(self._memory.gather(capture.block_ids, len(capture.token_ids)), capture.token_ids)
            return
        donor_id = capture.donor_id
        if not self._store.has_room_for(len(capture.token_ids) * self._memory.token_bytes):
            self._not_kept(capture, DeclineReason.CAPTURE_FAILED)
            return
        donor = self._memory.gather(capture.block_ids, len(capture.token_ids))
        self._prove(donor, capture.token_ids)
        own = capture.namespace.for_rank(self._rank)
        result = self._store.put(
            own,
            donor_id,
            donor,
            token_ids=capture.token_ids,
            give=True,  # Gathered for this.
            saved_ms=capture.saved_ms,
            on_durable=lambda _: self._durable(capture),
            on_declined=lambda _, reason: self._not_kept(capture, DeclineReason.CAPTURE_FAILED),
        )
        if result.accepted:
            return
        logger.debug("the KV of a prompt was not kept: %s", result.reason)
        if result.reason is StoreDecline.DUPLICATE_DONOR and self._store.contains(own, donor_id):
            self._durable(capture)  # Donors are named by their content, so what is held is the same.
        elif result.reason is not StoreDecline.DUPLICATE_DONOR:
            self._not_kept(capture, DeclineReason.CAPTURE_FAILED)

    def _prove(self, donor: DonorKv, token_ids: TokenIds) -> None:
        result = None if self._proof is None else proof.judge(self._proof, donor, token_ids)
        if result is not None:
            with self._lock:
                self._news.self_test[self._rank] = result

    def _recovered(self, donors: list[LeftDonor]) -> None:
        """Also where there are none: other ranks' may be offered when all have told."""
        found = [(digest_at_rank(digest, self._rank), name, tokens, born) for digest, name, tokens, born in donors]
        with self._lock:
            self._news.recovered[self._rank] = found

    def _durable(self, capture: CaptureOrder) -> None:
        with self._lock:
            self._news.durable[capture.name] = frozenset((self._rank,))

    def _not_kept(self, capture: CaptureOrder, reason: DeclineReason) -> None:
        if capture.donor_id is not None:
            with self._lock:
                self._news.lost[capture.name] = reason

    def _donor_gone(self, key: DonorKey, reason: Gone) -> None:
        why = DeclineReason.DONOR_CORRUPT if reason is Gone.CORRUPT else DeclineReason.DONOR_EVICTED
        with self._lock:
            self._news.lost[(digest_at_rank(key.namespace, self._rank), key.donor_id)] = why
