"""The worker's half: keeps prompts' KV, and brings it back where a plan wants it."""

from __future__ import annotations

import logging
import threading

import torch

from semblend_core import DeclineReason, Namespace, Span, TokenIds
from semblend_core.kv import (
    DonorKey,
    DonorKv,
    DonorStore,
    Gone,
    Rotation,
    StoreOptions,
    Transfer,
    TransferPendingError,
)
from semblend_vllm import proof
from semblend_vllm.correcting import ForwardCorrection
from semblend_vllm.engine_cache import EngineCache
from semblend_vllm.messages import Capture, Landed, Load, StepWork, WorkerNews

logger = logging.getLogger(__name__)


class WorkerSide:
    """Loads run before a forward and captures after it, on the engine's thread; the store copies on threads of its own.

    Nothing raises into the engine: what fails is told to the scheduler's half, which serves the request cold.
    """

    def __init__(self, options: StoreOptions, cache: EngineCache, rotation: Rotation, rank: int) -> None:
        self._cache, self._rotation, self._rank = cache, rotation, rank
        self._lock = threading.Lock()
        self._news = WorkerNews()
        self._proved = False
        self._invalid_blocks: set[int] = set()
        self._corrections: list[ForwardCorrection] = []
        self._shared_digest: dict[str, str] = {}
        """This rank's namespace to the one that discovery knows."""
        self._store = DonorStore(options, on_gone=self._donor_gone)
        self._warm_up()

    def load(self, work: StepWork) -> None:
        for namespace, donor_id in work.forget:
            self._store.forget(namespace.for_rank(self._rank), donor_id)
        self._corrections.clear()
        for load in work.loads:
            reason = self._load(load)
            with self._lock:
                if reason is None:
                    moved = sum(span.length for span in load.spans) * self._cache.token_bytes
                    self._news.landed[load.request_id] = Landed(load.reused_tokens, moved)
                else:
                    self._news.failed[load.request_id] = reason
                    first = load.spans[0].target_start // self._cache.block_size
                    self._invalid_blocks.update(load.block_ids[first:])

    def correct(self, layer: int) -> None:
        """Between a layer's KV update and its attention, in every layer of a step."""
        try:
            for correction in self._corrections:
                correction.apply(layer)
        except Exception:
            # Layers before this one are corrected, those behind it are not: worse than the tier promises, not wrong.
            logger.exception("the correction failed in layer %d and is left out of this step", layer)
            self._corrections.clear()

    def capture(self, work: StepWork) -> None:
        self._corrections.clear()
        for capture in work.captures:
            try:
                self._capture(capture)
            except Exception:
                logger.exception("the KV of %s could not be captured", capture.donor_id)
                self._not_kept(capture, DeclineReason.CAPTURE_FAILED)

    def take_news(self) -> WorkerNews | None:
        with self._lock:
            news, self._news = self._news, WorkerNews()
        return news or None

    def take_invalid_blocks(self) -> set[int]:
        invalid, self._invalid_blocks = self._invalid_blocks, set()
        return invalid

    def flush(self) -> None:
        """Wait for captures under way. Tests and shutdown only."""
        self._store.flush()

    def close(self) -> None:
        self._store.close()

    def check_integrity(self) -> None:
        self._store.check_integrity()

    def _warm_up(self) -> None:
        """Compile what a first load would otherwise wait for: block 0 is vLLM's own placeholder, and stays as it is."""
        kept = self._cache.gather([0], 1)
        self._cache.scatter([0], kept, [Span(0, "warm-up", 0, 1)])

    def _load(self, load: Load) -> DeclineReason | None:
        try:
            namespace = load.namespace.for_rank(self._rank)
            for donor_id in dict.fromkeys(span.donor_id for span in load.spans):
                spans = [span for span in load.spans if span.donor_id == donor_id]
                reason = self._load_from(namespace, donor_id, spans, load.block_ids)
                if reason is not None:
                    return reason
            if load.correction is not None:
                self._corrections.append(ForwardCorrection(load, self._cache, self._rotation))
        except Exception:
            logger.exception("the KV for %s could not be loaded", load.request_id)
            return DeclineReason.LOAD_FAILED
        return None

    def _load_from(
        self, namespace: Namespace, donor_id: str, spans: list[Span], block_ids: list[int]
    ) -> DeclineReason | None:
        handle = self._store.acquire(namespace, donor_id)
        if handle is None:
            return DeclineReason.DONOR_EVICTED
        with handle:
            # Of a donor that is at hand a view costs nothing, so one part serves all spans; others are copied.
            low, high = min(span.donor_start for span in spans), max(span.donor_end for span in spans)
            at_hand = str(handle.tier) == "device"
            ranges = [(low, high)] if at_hand else _merged([(span.donor_start, span.donor_end) for span in spans])
            parts = _brought(self._store.load(handle, ranges))
            for (start, end), part in zip(ranges, parts, strict=True):
                inside = [span for span in spans if start <= span.donor_start and span.donor_end <= end]
                self._cache.scatter(block_ids, part, inside)
        return None

    def _capture(self, capture: Capture) -> None:
        donor = self._cache.gather(capture.block_ids, len(capture.token_ids))
        if not self._proved:
            self._prove(donor, capture.token_ids)
        own = capture.namespace.for_rank(self._rank)
        self._shared_digest[own.digest] = capture.namespace.digest
        key = (capture.namespace.digest, capture.donor_id)

        def durable(_: str) -> None:
            with self._lock:
                self._news.durable[key] = 1

        result = self._store.put(own, capture.donor_id, donor, token_ids=capture.token_ids, on_durable=durable)
        if not result.accepted:
            logger.debug("the KV of %s was not kept: %s", capture.donor_id, result.reason)
            self._not_kept(capture, DeclineReason.CAPTURE_FAILED)

    def _prove(self, donor: DonorKv, token_ids: TokenIds) -> None:
        failed = proof.failure(donor, token_ids, self._rotation)
        if failed is None:
            return
        self._proved = True
        with self._lock:
            self._news.self_test = failed

    def _not_kept(self, capture: Capture, reason: DeclineReason) -> None:
        with self._lock:
            self._news.not_kept[(capture.namespace.digest, capture.donor_id)] = reason

    def _donor_gone(self, key: DonorKey, reason: Gone) -> None:
        with self._lock:
            self._news.gone.add((self._shared_digest.get(key.namespace, key.namespace), key.donor_id))


def _brought(transfer: Transfer) -> tuple[DonorKv, ...]:
    """The parts, in order on the engine's stream; the host waits only for what is still on disk."""
    if torch.cuda.is_available():
        try:
            transfer.wait_on_stream()
            return transfer.parts
        except TransferPendingError:
            pass
    return transfer.result()


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
