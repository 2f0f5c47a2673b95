"""SGLang's real tree, pools, allocator, admission and request, around a model that is two lines of arithmetic."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import releases
import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, Req
from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder
from sglang.srt.mem_cache.allocation import alloc_for_extend
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams
from toy_model import HEAD, LATENT, ToyModel

from semblend_core import SelfTestResult, SelfTestState, Settings, create_provider
from semblend_core.kv import Rotation
from semblend_core.serving import Namespaces
from semblend_sglang.compat import hooks, weights
from semblend_sglang.scheduler.fitting import BatchLimits
from semblend_sglang.scheduler.side import Side
from semblend_sglang.worker.pool import slot_pool_of

ADD_ONE_REQUEST = inspect.unwrap(PrefillAdder.add_one_req)
"""SGLang's own. A test that started an engine has left SemBlend's hook around it in this process."""
TRUSTING = {"sharing": "all", "cached_tokens": "exact"}


def _as_shown(cls: Any, batch: Any, runner: Any) -> Any:
    return cls(**vars(batch))


class Rig(ToyModel):
    """One scheduler, stepped by hand. No thread, no process, no weights."""

    def __init__(
        self,
        *,
        page_size: int = 1,
        core: str = "python",
        slots: int = 4096,
        latent: bool = False,
        chunk: int | None = 4096,
        most_sequences: int = 32,
        context: int = 4096,
        kept: Any = None,
        proved: bool = True,
        identity: tuple[tuple[str, str], ...] = (),
        events: bool = False,
        **settings: Any,
    ) -> None:
        self.page_size, self.chunk, self.latent, self.slots = page_size, chunk, latent, slots
        self.pool = self._new_pool(slots, page_size, latent)
        allocator = TokenToKVPoolAllocator if page_size == 1 else PagedTokenToKVPoolAllocator
        pages = () if page_size == 1 else (page_size,)
        self.allocator = allocator(slots, *pages, torch.float32, "cpu", self.pool, False)
        self.rows = ReqToTokenPool(64, context, "cpu", False)
        self.parameters, self.tree = releases.new_tree(
            core,
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=page_size,
            tree_components=(ComponentType.FULL,),
            enable_kv_cache_events=events,
        )
        frequencies = 1.0 / 10_000 ** (np.arange(0, HEAD, 2) / HEAD)
        start = LATENT if latent else 0
        self.rotation = Rotation(start + HEAD, start, HEAD, False, frequencies)
        self.settings = Settings(
            **{**TRUSTING, "min_span_tokens": 32, "quality_tier": "fast", "quality_share": 0.0, **settings}
        )
        provider = create_provider(self.settings, engine="sglang")
        self.namespaces = Namespaces(
            model="rig",
            revision="local",
            tokenizer="rig",
            dtype="float32",
            kv_layout="sglang",
            block_size=page_size,
            extras=identity,
        )
        pool = slot_pool_of(self.pool, self.rotation)
        limits = BatchLimits((chunk or context) - page_size, most_sequences)
        self.side = Side(provider, self.settings, self.tree, pool, limits, self.namespaces, kept)
        if proved:
            self.side.self_test.hear({0: SelfTestResult(SelfTestState.PASSED)})
        self.tree.semblend = self.side
        self.waiting: list[Req] = []
        self.running: list[Req] = []
        self.chunked: Req | None = None
        self.of_batch: dict[str, Any] = {}
        """Fields that a batch has otherwise."""
        self.forwards: list[int] = []
        """How many tokens each has computed."""
        self.is_paused = False
        self.before_admission: Callable[[Req], None] = lambda request: None

    # --- What clients and the scheduler do ---------------------------------------------------------------------------

    def submit(
        self,
        prompt: list[int],
        rid: str,
        *,
        salt: str | None = None,
        adapter: str | None = None,
        wish: Any = "on",
        output_tokens: int = 1,
    ) -> Req:
        sampling = SamplingParams(max_new_tokens=output_tokens, custom_params={"semblend": wish})
        sampling.normalize(None)
        request = Req(rid, "", array("q", prompt), sampling, lora_id=adapter, cache_salt=salt)
        self.waiting.append(request)
        return request

    def step(self) -> list[Req]:
        """One round of the scheduler: admit what fits, compute it, and hand the results on."""
        if self.is_paused:
            return []
        if self.side is not None:
            self.side.round.begin()
        adder = PrefillAdder(
            self.page_size,
            self.tree,
            self.allocator,
            SimpleNamespace(reqs=self.running, batch_size=lambda: len(self.running)),
            1.0,
            rem_input_tokens=self.chunk or 4096,
            rem_chunk_tokens=self.chunk,
        )
        if self.chunked is not None:
            self.chunked = adder.add_chunked_req(self.chunked)
        for request in list(self.waiting):
            if not self._is_asked_about(request):
                continue
            self.before_admission(request)
            verdict = hooks.add_one_request(
                ADD_ONE_REQUEST,
                adder,
                request,
                has_chunked_req=self.chunked is not None,
                truncation_align_size=None,
            )
            if verdict is not AddReqResult.CONTINUE:
                break
        self.waiting = [request for request in self.waiting if request not in adder.can_run_list]
        if adder.new_chunked_req is not None:
            assert self.chunked is None
            self.chunked = adder.new_chunked_req
        if adder.can_run_list:
            self._forward(adder.can_run_list)
        for request in adder.can_run_list:
            self._computed(request)
        if self.side is not None:  # As behind SGLang's `process_batch_result`.
            self.side.capturing.catch_up()
        return list(adder.can_run_list)

    def finish(self, request: Req) -> None:
        self.running.remove(request)
        request.finished_reason = FINISH_LENGTH(length=len(request.output_ids))
        request.finished_len = len(request.output_ids)
        releases.release(request, self.tree, keep_it=True)

    def retract(self, request: Req) -> None:
        self.running.remove(request)
        releases.release(request, self.tree, keep_it=False)
        request.reset_for_retract()
        self.waiting.append(request)

    def abort(self, request: Req) -> None:
        if request in self.waiting:
            self.waiting.remove(request)
            releases.leave_queue(request, self.tree, self.waiting)
            return
        if request is self.chunked:
            self.chunked = None
        else:
            self.running.remove(request)
        request.finished_reason = FINISH_ABORT()
        releases.release(request, self.tree, keep_it=False)

    def pause(self, *, retract: bool) -> None:
        """As SGLang's ``pause_generation``: no round until ``resume``."""
        self.is_paused = True
        for request in list(self.running) if retract else ():
            self.retract(request)
        if retract and self.chunked is not None:
            self.running.append(self.chunked)
            request, self.chunked = self.chunked, None
            self.retract(request)

    def resume(self) -> None:
        self.is_paused = False

    def flush(self) -> bool:
        """As SGLang's ``flush_cache``: not while something is computed, or waits and is not paused. Whether it was."""
        if self.running or self.chunked or (self.waiting and not self.is_paused):
            return False
        self.tree.reset()
        self.rows.clear()
        self.allocator.clear()
        return True

    def update_weights(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Without emptying the tree, unless that happens ``meanwhile``."""

        def update(_: Any) -> None:
            self.weights += 1
            meanwhile()

        weights.update_weights(update, self.updater())

    def update_over_rdma(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Others write to the weights; SGLang hears of the beginning and of the end."""
        weights.open_session(lambda _: None, self.updater())
        meanwhile()
        self.weights += 1
        weights.update_weights(lambda _: None, self.updater())

    def updater(self) -> Any:
        """As SGLang's own knows its scheduler."""
        return SimpleNamespace(scheduler=SimpleNamespace(tree_cache=self.tree, server_args=SimpleNamespace()))

    def settle(self) -> None:
        """Nothing runs beside it."""

    def close(self) -> None:
        """For those that have something to give back."""

    def evict(self, tokens: int) -> None:
        self.tree.evict(EvictParams(num_tokens=tokens))

    def evict_all_but(self, request: Req) -> None:
        """Everything that ``request`` has not matched itself."""
        held = self.tree.hold(request.last_node)
        self.evict(self.slots)
        self.tree.let_go(held)

    def serve(self, prompt: list[int], rid: str, **options: Any) -> Req:
        """From submission to release."""
        request = self.submit(prompt, rid, **options)
        for _ in range(200):
            self.step()
            if request in self.running:
                self.finish(request)
                return request
        raise AssertionError(f"{rid} was never served")

    def _is_asked_about(self, request: Req) -> bool:
        """What the scheduler does with a waiting request in front of admission; whether it comes to that."""
        request.init_next_round_input(self.tree)
        return True

    # --- The forward -------------------------------------------------------------------------------------------------

    def _forward(self, requests: list[Req]) -> None:
        prefixes = [releases.prefix_len(request) for request in requests]
        ends = [releases.extend_end(request) for request in requests]
        lengths = [end - prefix for prefix, end in zip(prefixes, ends, strict=True)]
        ids = [request.get_fill_ids()[prefix:] for request, prefix in zip(requests, prefixes, strict=True)]
        seq_lens = torch.tensor(ends)
        batch = SimpleNamespace(
            reqs=requests,
            tree_cache=self.tree,
            req_to_token_pool=self.rows,
            device="cpu",
            hisparse_coordinator=None,
            is_dllm=lambda: False,
            maybe_evict_swa=lambda: None,
            forward_mode=ForwardMode.EXTEND,
            prefix_lens=prefixes,
            extend_lens=lengths,
            seq_lens=seq_lens,
            seq_lens_cpu=seq_lens,
            seq_lens_sum=int(seq_lens.sum()),
            orig_seq_lens=seq_lens,
            extend_num_tokens=sum(len(part) for part in ids),
            extend_logprob_start_lens=list(lengths),
            multimodal_inputs=None,
        )
        batch.out_cache_loc, batch.req_pool_indices, batch.req_pool_indices_cpu = alloc_for_extend(batch)
        batch.input_ids = torch.tensor([token for part in ids for token in part])
        for request, prefix, end in zip(requests, prefixes, ends, strict=True):
            releases.computes_up_to(request, end)
            if not request.retracted_stain:  # SGLang counts what was cached once per request.
                request.cached_tokens += prefix - request.already_computed
                request.already_computed = end
        vars(batch).update(self.of_batch)
        runner = SimpleNamespace(forward=self._run)
        runner.forward(hooks.make_forward_batch(_as_shown, SimpleNamespace, batch, runner))

    def _run(self, forward_batch: Any) -> None:
        self.forwards.append(int(forward_batch.extend_num_tokens))
        hooks.run_model(lambda _, shown: self._compute(shown), None, forward_batch)

    def _computed(self, request: Req) -> None:
        if request is self.chunked:
            releases.keep(request, self.tree, in_pieces=True)
            return
        request.output_ids.append(7)
        self.running.append(request)
        releases.keep(request, self.tree, in_pieces=False)

    # --- What lies where ---------------------------------------------------------------------------------------------

    def slots_of(self, request: Req) -> list[int]:
        row: list[int] = self.rows.req_to_token[releases.row_of(request), : request.kv.kv_allocated_len].tolist()
        return row

    def exact_match(self, tokens: list[int], key: Any) -> list[int]:
        """Slots that the exact tree gives for ``tokens``."""
        found = self.tree.find(array("q", tokens), key)
        slots: list[int] = found.read_slots().tolist() if found.length else []
        return slots

    def is_approximate(self, request: Req) -> bool:
        life = self.side.requests.of_request(request)
        return life is not None and life.is_approximate

    def check_lineages(self) -> None:
        """Whatever others may go on from is the KV of its own tokens, at their own places."""
        for node in self.side.lineages.shadow.nodes():
            first = node.lineage.start + sum(step.tokens.size for step in node.path()) - node.tokens.size
            slots = node.slots.tolist()
            assert self.tokens_at(slots) == node.tokens.tolist()
            assert self.key_error(slots, list(range(first, first + len(slots)))) < 1e-4

    def check_accounts(self) -> None:
        """Every slot is free, in a tree, or some request's own; none twice."""
        held = [*self.running, *([self.chunked] if self.chunked else [])]
        own = [slot for request in held for slot in self.slots_of(request)[releases.owned_by_trees(request) :]]
        pages = {slot // self.page_size for slot in own}
        if self.page_size == 1:
            assert len(pages) == len(own), "a slot has two owners"
        used = len(pages) * self.page_size
        total = self.allocator.available_size() + self.tree.evictable_size() + self.tree.protected_size() + used
        assert total == self.slots, f"{self.slots - total} slots are lost"
        approximate = [slot for node in self.side.lineages.shadow.nodes() for slot in node.slots.tolist()]
        assert len(set(approximate)) == len(approximate), "two lineages own one slot"
        assert not set(approximate) & set(own), "a request would free what a lineage owns"
        self.side.check_integrity()
