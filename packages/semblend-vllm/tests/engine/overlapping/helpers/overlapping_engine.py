"""vLLM's scheduler with two steps in flight.

vLLM runs steps one by one on CPU. Here queues, block pool, prefix cache and our half are the real ones, and only the
model is not.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from paper_worker import BLOCK, BLOCKS, PaperWorker
from vllm import SamplingParams
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    get_block_hash,
    get_request_block_hasher,
    init_none_hash,
    maybe_convert_block_hash,
)
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from semblend_core.testing import shallow_model_folder
from semblend_vllm import SemBlendScheduler

init_none_hash(sha256)


class Overlapping:
    """The engine's loop, one call at a time."""

    def __init__(
        self,
        *,
        overlapping: bool = True,
        slots_of_their_own: bool = False,
        tokens_of_a_step: int = 256,
        places: int = 8,
        blocks: int = BLOCKS,
        change: Callable[[VllmConfig], object] = lambda config: None,
        **spec: Any,
    ) -> None:
        """``slots_of_their_own``: as vLLM's second model runner has it, which is sent requests that resume as new.

        ``change``: of vLLM's configuration. ``spec``: of the kind of KV.
        """
        self.scheduler = _new_scheduler(overlapping, tokens_of_a_step, places, blocks, change, spec)
        self.scheduler.use_v2_model_runner = slots_of_their_own
        self.side = getattr(self.scheduler.connector, "scheduler_side", None)
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.worker = PaperWorker(blocks)
        self.worker.tells_all_rows = not slots_of_their_own
        self.worker.tenant_of = lambda request_id: self.scheduler.requests[request_id].cache_salt
        self.worker.prompt_of = lambda request_id: self.scheduler.requests[request_id].prompt_token_ids
        self.depth = 2 if overlapping else 1
        self.in_flight: deque[tuple[Any, Any]] = deque()
        self.answers: dict[str, list[int]] = defaultdict(list)
        self.computed: Counter[str] = Counter()
        """Tokens by request, its rows included."""
        self.shown_as_cached: dict[str, int] = {}
        """What clients read of relocated tokens."""
        self.requests: dict[str, Any] = {}
        self.announced: list[Any] = []
        self.in_metrics: Counter[str] = Counter()
        """What vLLM shows of its prefix cache, and of its connector's."""
        self.scheduler.kv_event_publisher.publish = lambda batch: self.announced.extend(batch.events)
        self._allocate = self.scheduler.kv_cache_manager.allocate_slots
        self.scheduler.kv_cache_manager.allocate_slots = self._allocate_or_not
        self._short = 0
        self._numbers = count()
        self._free = self.pool.get_num_free_blocks()

    def add(
        self,
        prompt: Sequence[int],
        tokens: int = 4,
        wish: Any = "on",
        salt: str | None = "tenant",
        request_id: str | None = None,
        adapter: Any = None,
    ) -> Any:
        request = _new_request(request_id or f"request-{next(self._numbers)}", prompt, tokens, wish, salt, adapter)
        request.kv_cache_report_mode = "full"  # Blocks that it finds are announced too, its own among them.
        self.scheduler.add_request(request)
        self.requests[request.request_id] = request
        return request

    def abort(self, request: Any) -> None:
        self.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)

    def preempt(self, request: Any) -> None:
        """Between two steps, as vLLM does it when its caches are reset."""
        self.scheduler.running.remove(request)
        self.scheduler._preempt_request(request, time.monotonic())
        if hasattr(request, "async_tokens_to_discard"):  # 0.26, which resumes it at once: what is in flight is stale.
            request.async_tokens_to_discard += request.num_output_placeholders
            request.num_output_placeholders = 0
        self.scheduler.prev_step_scheduled_req_ids.discard(request.request_id)

    def pause(self, state: str) -> None:
        """``state``: PAUSED_ALL, PAUSED_NEW or UNPAUSED."""
        self.scheduler.set_pause_state(PauseState[state])

    def drain(self) -> None:
        while self.in_flight:
            self.update()

    def run_short(self, times: int) -> None:
        """The pool has no blocks, so often."""
        self._short += times

    def _allocate_or_not(self, *args: Any, **kwargs: Any) -> Any:
        if self._short:
            self._short -= 1
            return None
        return self._allocate(*args, **kwargs)

    def schedule(self) -> Any:
        output = self.scheduler.schedule()
        lives = map(self.side.requests.get, output.num_scheduled_tokens) if self.side is not None else ()
        named = [life for life in lives if life is not None]
        in_place = {life.request_id for life in named if life.taken or life.approximate_from is not None}
        self.worker.may_be_approximate |= in_place
        for request_id, tokens in output.num_scheduled_tokens.items():
            self.computed[request_id.split("#")[0]] += tokens
        self.in_flight.append((output, self.worker.run(output)))
        return output

    def update(self) -> None:
        for told in self.scheduler.update_from_output(*self.in_flight.popleft()).values():
            if told.scheduler_stats is not None:
                self._count(told.scheduler_stats)
            for output in told.outputs:
                self.answers[output.request_id] += output.new_token_ids
                if output.prefill_stats is not None:
                    self.shown_as_cached[output.request_id] = output.prefill_stats.num_external_cached_tokens

    def _count(self, stats: Any) -> None:
        connector = stats.connector_prefix_cache_stats
        for cache, shown in (("own", stats.prefix_cache_stats), ("connector", connector)):
            self.in_metrics.update(
                {f"{cache} {name}": getattr(shown, name) for name in ("requests", "queries", "hits")}
            )

    def step(self) -> None:
        if self.scheduler.has_requests() and len(self.in_flight) < self.depth:
            self.schedule()
        elif self.in_flight:
            self.update()

    def finish(self) -> None:
        for _ in range(2000):
            if not self.scheduler.has_requests() and not self.in_flight:
                return
            self.step()
        raise AssertionError("requests that never end")

    def check_nothing_is_left(self) -> None:
        assert not self.scheduler.requests
        assert not self.scheduler.deferred_frees
        assert self.scheduler.sched_step_seq == self.scheduler.processed_step_seq
        assert self.pool.get_num_free_blocks() == self._free
        self.side.check_integrity()
        assert len(self.side.requests) == 0
        assert all(donor in self.side.keeper.donors for donor in self.worker.donors), "kept, and nobody can find it"
        assert not self.side.take_failed()
        assert not self.side.long_claims.unfinished()
        assert self.side.provider.stats().pinned_requests == 0

    def cached_blocks(self) -> dict[int, Any]:
        """Block ids to hashes, as they are announced."""
        cached = [block for block in self.pool.blocks if block.block_hash is not None]
        return {block.block_id: maybe_convert_block_hash(get_block_hash(block.block_hash)) for block in cached}

    def has_true_hashes(self, request: Any) -> bool:
        return not self.names_of_lineages(request)

    def names_of_lineages(self, request: Any) -> set[Any]:
        """Hashes of its blocks that are not made of tokens alone."""
        again = _new_request("again", list(request.all_token_ids), 1, salt=request.cache_salt)
        return set(request.block_hashes) - set(again.block_hashes)


def _new_request(
    request_id: str,
    prompt: Sequence[int],
    tokens: int,
    wish: Any = "on",
    salt: str | None = "tenant",
    adapter: Any = None,
) -> Any:
    extra = {"kv_transfer_params": {"semblend": wish}}
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, extra_args=extra)
    sampling.update_from_generation_config({}, 1)
    hasher = get_request_block_hasher(BLOCK, sha256)
    return Request(request_id, list(prompt), sampling, None, lora_request=adapter, cache_salt=salt, block_hasher=hasher)


def _new_scheduler(
    overlapping: bool,
    tokens_of_a_step: int,
    places: int,
    blocks: int,
    change: Callable[[VllmConfig], object],
    spec_options: dict[str, Any],
) -> Any:
    model = ModelConfig(str(shallow_model_folder()), dtype="float32", skip_tokenizer_init=True, max_model_len=2048)
    config = VllmConfig(
        model_config=model,
        device_config=DeviceConfig("cpu"),
        cache_config=CacheConfig(block_size=BLOCK),
        scheduler_config=SchedulerConfig(
            max_num_seqs=places,
            max_num_batched_tokens=tokens_of_a_step,
            max_model_len=2048,
            is_encoder_decoder=False,
            scheduler_cls=SemBlendScheduler,
        ),
        kv_transfer_config=KVTransferConfig(
            kv_connector="SemBlendConnectorV1", kv_connector_module_path="semblend_vllm", kv_role="kv_both"
        ),
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    )
    config.scheduler_config.async_scheduling = overlapping  # Which is off on CPU, for want of a worker.
    config.cache_config.num_gpu_blocks = blocks
    change(config)
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32, **spec_options)
    cache = KVCacheConfig(blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layers.0"], spec)])
    make = config.scheduler_config.get_scheduler_cls()
    return make(config, cache, StructuredOutputManager(config), block_size=BLOCK, log_stats=True)
