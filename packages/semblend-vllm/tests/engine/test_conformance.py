"""The conformance suite around the real engine: its own cache, scheduler and KV, our adapter, a provider per test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from semblend_core import (
    Namespace,
    Outcome,
    OutcomeKind,
    ProviderStats,
    SelfTestResult,
    SelfTestState,
    Settings,
    as_token_ids,
    create_provider,
    donor_id_of,
)
from semblend_core.testing import Fault, Served, Subject, listen_to
from semblend_core.testing.conformance import ProviderConformance

PATIENT = {"SEMBLEND_LOOKUP_BUDGET_MS": "60000", "SEMBLEND_SHARING": "all"}
WORDS = " ".join(f"Page {n} of the ledger lists {n * 7 % 31} names." for n in range(30))
_numbers = itertools.count()


class VllmSubject(Subject):
    """The engine of all tests, emptied, with a provider of its own."""

    block_size = 32
    min_span_tokens = 64
    has_lineages = True

    def __init__(self, engine: Any, settings: dict[str, Any]) -> None:
        self._engine, self._side = engine, engine.side
        self._stalled: list[Callable[[], Any]] = []
        engine.settle()
        engine.scheduler.connector.reset_cache()
        engine.ask("Now.", reuse="off", tokens=1)  # The workers hear of it with a step.
        engine.llm.reset_prefix_cache()
        prove(self._side)
        given = {f"SEMBLEND_{name.upper()}": str(value) for name, value in settings.items()}
        self._provider = create_provider(Settings.from_env({**PATIENT, **given}), engine="vllm")
        self._lookups, self._outcomes = listen_to(self._provider)
        use_provider(self._side, self._provider)

    @property
    def provider(self) -> Any:
        return self._provider

    def namespace(self, *, salt: str | None = None, adapter: str | None = None) -> Namespace:
        namespace: Namespace = self._side._follow.namespace(SimpleNamespace(lora_request=None, cache_salt=salt))
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
        if adapter is not None:
            pytest.skip("this engine has no adapters: test_tiers.py asks the same of one that has")
        self._lookups.clear()
        self._outcomes.clear()
        with ExitStack() as stack:
            if fault is not None:
                stack.enter_context(self._suffering(fault))
            output, held = self._run(prompt, salt, reuse)
        self._side.catch_up()
        cached = output.num_cached_tokens or 0
        outcome = self._outcomes[-1] if self._outcomes else _unasked(cached)
        return Served(
            donor_id_of(as_token_ids(prompt)),
            tuple(prompt),
            outcome,
            cached - (outcome.confirmed_tokens or 0),
            self._lookups[-1].plan if self._lookups else None,
            held,
        )

    def _run(self, prompt: Sequence[int], salt: str | None, reuse: bool) -> tuple[Any, tuple[int, ...]]:
        """The answer, and the tokens whose KV lies in the prompt's slots once it is prefilled."""
        from vllm import SamplingParams

        asked: dict[str, Any] = {"prompt_token_ids": list(prompt)} | ({"cache_salt": salt} if salt else {})
        extra = None if reuse else {"kv_transfer_params": {"semblend": "off"}}
        sampling = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, detokenize=False, extra_args=extra)
        engine = self._engine.llm.llm_engine
        engine.add_request(f"conformance-{next(_numbers)}", asked, sampling)
        output: Any = None
        held: tuple[int, ...] = ()
        while engine.has_unfinished_requests():
            output = (engine.step() or [output])[-1]
            for request in self._engine.scheduler.running:
                if not held and request.num_output_tokens:
                    held = self._held(request.request_id, prompt)
        return output, held

    def _held(self, request_id: str, prompt: Sequence[int]) -> tuple[int, ...]:
        """V of layer 0 is a function of the token alone: where it is not the prompt's own, -1."""
        import torch

        (blocks,) = self._engine.scheduler.kv_cache_manager.get_block_ids(request_id)
        cache = self._engine.worker._memory
        kept = type(cache).gather(cache, blocks, len(prompt)).values[0]  # Whatever the cache itself is made to suffer.
        errors = (kept - self._engine.first_values(prompt)).abs().amax((1, 2))
        right = errors < 1e-3 * kept.abs().max()
        return tuple(torch.where(right, torch.tensor(prompt), -1).tolist())

    @contextmanager
    def _suffering(self, fault: Fault) -> Iterator[None]:
        """Real objects with one call that goes wrong."""
        worker = self._engine.worker
        store, cache = worker._store, worker._memory
        broken = RuntimeError(f"injected: {fault}")
        patch: Any
        if fault is Fault.LOOKUP_ERROR:
            patch = mock.patch.object(self._provider, "lookup", side_effect=broken)
        elif fault is Fault.LOAD_ERROR:
            patch = mock.patch.object(cache, "scatter", side_effect=broken)
        elif fault is Fault.CAPTURE_ERROR:
            patch = mock.patch.object(cache, "gather", side_effect=broken)
        elif fault is Fault.CAPTURE_STALLED:
            patch = mock.patch.object(worker, "_capture", self._stalling(worker._capture))
        else:
            patch = mock.patch.object(worker, "load", self._forgetting(worker.load, store))
        with patch:
            yield

    def _stalling(self, capture: Callable[[Any], Any]) -> Callable[[Any], None]:
        """The copy is made when it should be; that it ends comes later."""

        def stalled(order: Any) -> None:
            donor = self._engine.worker._memory.gather(order.block_ids, len(order.token_ids))

            def go_on() -> None:
                with mock.patch.object(self._engine.worker._memory, "gather", return_value=donor):
                    capture(order)

            self._stalled.append(go_on)

        return stalled

    def _forgetting(self, load: Callable[[Any], Any], store: Any) -> Callable[[Any], None]:
        """Between plan and load the donors' bytes go, and nobody has been told."""

        def forget_first(work: Any) -> None:
            for each in work.loads:
                for span in each.spans:
                    store.forget(each.namespace.for_rank(0), span.donor_id)
            load(work)

        return forget_first

    def settle(self) -> None:
        stalled, self._stalled = self._stalled, []
        for go_on in stalled:
            go_on()
        self._engine.settle()

    def change_weights(self) -> None:
        self._engine.scheduler.connector.reset_cache()
        self._engine.ask("Now.", reuse="off", tokens=1)  # The workers hear of it with a step.

    def evict(self, tokens: int) -> None:
        pool = self._engine.scheduler.kv_cache_manager.block_pool
        free = pool.free_block_queue.get_all_free_blocks()
        unnamed = sum(block.block_hash is None for block in free)
        pool.free_blocks(pool.get_new_blocks(min(len(free), unnamed + tokens // self.block_size)))

    def fail_self_test(self) -> None:
        from semblend_core.serving import WorkerNews

        failed = SelfTestResult.refused("relocated K of layer 0 differs from computed K")
        self._side.hear(WorkerNews(self_test={0: failed}))

    def stats(self) -> ProviderStats:
        stats: ProviderStats = self._provider.stats()
        return stats

    def check_integrity(self) -> None:
        self._engine.check_integrity()


def use_provider(side: Any, provider: Any) -> None:
    side.provider = side.admission.seeker.provider = side.keeper.donors._provider = provider


def prove(side: Any) -> None:
    """As if the first prompt had just shown that K can be moved."""
    side.self_test._results.clear()  # A failure is for good; the engine of all tests goes on.
    side.self_test.hear({0: SelfTestResult(SelfTestState.PASSED)})


def _unasked(cached: int) -> Outcome:
    """Of a request that wants no reuse the adapter says nothing."""
    return Outcome("unasked", OutcomeKind.EXACT_PREFIX if cached else OutcomeKind.COLD)


@pytest.fixture(scope="module")
def proved(engine: Any) -> Iterator[Any]:
    """The engine, with what these tests take from it given back."""
    engine.ask(WORDS, tokens=1)  # Nothing is loaded before a prompt has proved that K can be moved.
    engine.settle()
    assert engine.side.self_test.passed
    provider = engine.side.provider
    yield engine
    engine.scheduler.connector.reset_cache()
    use_provider(engine.side, provider)
    prove(engine.side)


class TestVllm(ProviderConformance):
    fillers = 8

    @pytest.fixture
    def make_subject(self, proved: Any) -> Callable[..., Subject]:
        return lambda **settings: VllmSubject(proved, settings)
