"""The worked example holds every invariant: an adapter's author can start from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from toy_engine import BLOCK, ToyAdapter, ToyEngine, Work

from semblend_core import (
    Namespace,
    Outcome,
    OutcomeKind,
    ProviderStats,
    Settings,
    as_token_ids,
    create_provider,
    donor_id_of,
)
from semblend_core.serving import Wish
from semblend_core.testing import Fault, Served, Subject, listen_to
from semblend_core.testing.conformance import ProviderConformance


class ToySubject(Subject):
    block_size, min_span_tokens = BLOCK, 64

    def __init__(self, settings: dict[str, Any]) -> None:
        chosen = Settings(**{"lookup_budget_ms": 60_000.0, "sharing": "all", "quality_tier": "fast", **settings})
        self._provider = create_provider(chosen, engine="toy")
        self._stalled: list[Work] = []
        self._lookups, self._outcomes = listen_to(self._provider)
        self._adapter = ToyAdapter(self._provider, chosen)
        self._engine = ToyEngine(self._adapter)

    @property
    def provider(self) -> Any:
        return self._provider

    def namespace(self, *, salt: str | None = None, adapter: str | None = None) -> Namespace:
        return self._adapter.namespaces.of(adapter, salt)

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
        tokens = as_token_ids(prompt)
        with self._suffering(fault):
            exact, kv = self._engine.serve(tokens, salt, adapter, Wish("on" if reuse else "off"))
        unasked = Outcome("unasked", OutcomeKind.EXACT_PREFIX if exact else OutcomeKind.COLD)
        return Served(
            donor_id_of(tokens),
            tuple(prompt),
            self._outcomes[-1] if self._outcomes else unasked,
            exact,
            self._lookups[-1].plan if self._lookups else None,
            tuple(kv.tolist()),
        )

    @contextmanager
    def _suffering(self, fault: Fault | None) -> Iterator[None]:
        """The adapter's own parts, with one that goes wrong."""
        adapter, kept = self._adapter, self._adapter.kept
        broken = mock.Mock(side_effect=RuntimeError(f"injected: {fault}"))
        if fault is Fault.LOOKUP_ERROR:
            patch: Any = mock.patch.object(adapter.seeker, "provider", mock.Mock(lookup=broken))
        elif fault is Fault.DONOR_EVICTED:
            patch = mock.patch.object(adapter, "kept", {})
        elif fault is Fault.LOAD_ERROR:
            patch = mock.patch.object(adapter, "kept", {name: _Unreadable() for name in kept})
        elif fault is Fault.CAPTURE_ERROR:
            patch = mock.patch.object(adapter, "kept", _Full(kept))
        elif fault is Fault.CAPTURE_STALLED:
            patch = mock.patch.object(adapter, "run", self._stalled.append)
        else:
            yield
            return
        with patch:
            yield

    def settle(self) -> None:
        stalled, self._stalled = self._stalled, []
        for work in stalled:
            work()

    def fail_self_test(self) -> None:
        self._adapter.self_test.refuse("relocated K of layer 0 differs from computed K")

    def stats(self) -> ProviderStats:
        return self._provider.stats()

    def check_integrity(self) -> None:
        self._provider.check_integrity()
        self._adapter.keeper.captures.check_integrity()
        assert len(self._adapter.requests) == 0
        assert self.stats().pinned_requests == 0


class _Unreadable:
    def __getitem__(self, part: slice) -> Any:
        raise OSError("the copy failed half way")


class _Full(dict[Any, Any]):
    def __setitem__(self, name: Any, copied: Any) -> None:
        raise OSError("no room is left")


class TestToyEngine(ProviderConformance):
    @pytest.fixture
    def make_subject(self) -> Callable[..., Subject]:
        return lambda **settings: ToySubject(settings)
