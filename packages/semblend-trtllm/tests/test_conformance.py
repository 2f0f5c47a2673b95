"""The conformance suite on TensorRT-LLM's order of calls. What it leaves out is about approximate KV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from paper_engine import BLOCK, PaperEngine, PaperRequest

from semblend_core import Namespace, Outcome, OutcomeKind, ProviderStats, as_token_ids, donor_id_of
from semblend_core.testing import Fault, Served, Subject, listen_to
from semblend_core.testing.conformance import ProviderConformance

ADAPTERS = {None: None, "lora-1": 1}


class TrtllmSubject(Subject):
    block_size, min_span_tokens, exact_only = BLOCK, 64, True

    def __init__(self, engine: PaperEngine) -> None:
        self._engine, self._side, self._worker = engine, engine.scheduler.side, engine.worker.half.side
        self._lookups, self._outcomes = listen_to(self._side.provider)
        self._stalled: list[Callable[[], None]] = []

    @property
    def provider(self) -> Any:
        return self._side.provider

    def namespace(self, *, salt: str | None = None, adapter: str | None = None) -> Namespace:
        # 1.2 tells the number of a salt only.
        told = self._engine.add([1], salt=salt)
        self._engine.waiting.remove(told)
        known = getattr(told, "cache_salt", None) or (
            None if told.cache_salt_id is None else f"id:{told.cache_salt_id}"
        )
        namespace: Namespace = self._side.follow.namespace(ADAPTERS[adapter], known)
        return namespace

    def serve(
        self,
        prompt: Sequence[int],
        *,
        salt: str | None = None,
        adapter: str | None = None,
        reuse: bool = True,
        fault: Fault | None = None,
    ) -> Served:
        self._lookups.clear()
        self._outcomes.clear()
        # A request cannot switch SemBlend off; one that wants logits of its prompt is left alone.
        more = {"salt": salt, "lora": ADAPTERS[adapter], "return_context_logits": not reuse, "max_new": 1}
        with self._suffering(fault):
            request = self._engine.add(list(prompt), **more)
            while not request.is_over:
                self._engine.step()
        self._engine.manager.get_finished()
        unasked = Outcome("unasked", OutcomeKind.EXACT_PREFIX if request.found else OutcomeKind.COLD)
        return Served(
            donor_id_of(as_token_ids(prompt)),
            tuple(prompt),
            self._outcomes[-1] if self._outcomes and reuse else unasked,
            request.found,
            self._lookups[-1].plan if self._lookups else None,
            self._tokens_of(request),
        )

    def _tokens_of(self, request: PaperRequest) -> tuple[int, ...]:
        """The token whose KV each position has: its own where K and V of all layers are those of a cold prompt."""
        tokens = request.tokens[: request.prompt_len]
        _, cold = self._engine.cold(tokens)
        right = torch.ones(len(tokens), dtype=torch.bool)
        for layer, expected in enumerate(cold.layers):
            for ours, theirs in zip(
                self._engine.read(request, len(tokens), layer), (expected.keys, expected.values), strict=True
            ):
                right &= torch.isclose(ours, theirs, atol=1e-4, rtol=1e-4).all(3).all(1)[0]
        return tuple(token if fits else -1 for token, fits in zip(tokens, right.tolist(), strict=True))

    @contextmanager
    def _suffering(self, fault: Fault | None) -> Iterator[None]:
        """The adapter's own parts, with one that goes wrong."""
        broken = mock.Mock(side_effect=RuntimeError(f"injected: {fault}"))
        if fault is Fault.LOOKUP_ERROR:
            patch: Any = mock.patch.object(self._side.seeker, "provider", mock.Mock(lookup=broken))
        elif fault is Fault.DONOR_EVICTED:
            patch = mock.patch.object(self._worker._store, "acquire", return_value=None)
        elif fault is Fault.LOAD_ERROR:
            patch = mock.patch.object(self._worker._store, "load", broken)
        elif fault is Fault.CAPTURE_ERROR:
            patch = mock.patch.object(self._worker, "_capture", broken)
        elif fault is Fault.CAPTURE_STALLED:
            patch = mock.patch.object(self._worker, "_durable", self._stall)
        else:
            yield
            return
        with patch:
            yield
            self._worker.flush()

    def _stall(self, capture: Any) -> None:
        self._stalled.append(lambda: self._worker._durable(capture))

    def settle(self) -> None:
        stalled, self._stalled = self._stalled, []
        for durable in stalled:
            durable()
        self._engine.settle()

    def evict(self, tokens: int) -> None:
        self._engine.forget_cache()

    def fail_self_test(self) -> None:
        self._side.self_test.refuse("KV that was written to the engine's pool is not what is read back")

    def stats(self) -> ProviderStats:
        found: ProviderStats = self._side.provider.stats()
        return found

    def check_integrity(self) -> None:
        self._side.check_integrity()
        self._worker.check_integrity()
        assert len(self._side.requests) == 0
        assert self.stats().pinned_requests == 0


class TestTrtllm(ProviderConformance):
    fillers = 8

    @pytest.fixture
    def make_subject(self, make_engine: Callable[..., PaperEngine]) -> Callable[..., Subject]:
        return lambda **settings: TrtllmSubject(make_engine(engine={"blocks": 600}, **settings))
