"""What of SGLang's insides this adapter wraps or relies upon. Each supported version's are noted in ``pins``.

``python3 tools/run.py pins semblend-sglang`` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

from semblend_core.pins import Relied


def _of(owner: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{owner}.{name}" for name in names)


MANAGERS = "sglang.srt.managers"
CACHE = "sglang.srt.mem_cache"
ATTENTION = "sglang.srt.layers.attention"

RELIED = Relied(
    engine="sglang",
    distributions=("sglang",),
    folder=Path(__file__).with_name("pins"),
    sources=(
        # Hooked, and what SGLang does between two of these calls.
        *_of(
            f"{MANAGERS}.scheduler.Scheduler",
            *("get_next_batch_to_run", "run_batch", "process_batch_result", "on_idle", "abort_request"),
            *("_prefetch_kvcache", "handle_generate_request", "is_fully_idle", "flush_cache"),
            "process_input_requests",
        ),
        *_of(
            f"{MANAGERS}.scheduler_components.request_receiver.SchedulerRequestReceiver",
            *("recv_requests", "_pull_raw_reqs", "_broadcast_reqs_across_ranks"),
        ),
        *_of(
            f"{MANAGERS}.scheduler_components.weight_updater.SchedulerWeightUpdaterManager",
            *("update_weights_from_disk", "update_weights_from_distributed", "update_weights_from_tensor"),
            *("update_weights_from_ipc", "begin_weight_update", "end_weight_update"),
            *("release_memory_occupation", "resume_memory_occupation", "check_weights"),
        ),
        *_of(f"{MANAGERS}.schedule_policy.PrefillAdder", "add_one_req", "add_chunked_req"),
        *_of(
            f"{MANAGERS}.schedule_batch.Req",
            *("init_next_round_input", "reset_for_retract", "set_extend_range", "get_fill_ids"),
        ),
        *_of(f"{MANAGERS}.schedule_batch.ScheduleBatch", "prepare_for_extend", "mix_with_running"),
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new",
        "sglang.srt.model_executor.model_runner.ModelRunner.forward",
        # In a captured prefill attention runs between the graphs, with what the batch at hand says.
        *_of(
            "sglang.srt.model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner",
            *("can_run_graph", "load_batch", "execute", "_prepare_forward_metadata_for_replay"),
        ),
        *_of(
            "sglang.srt.layers.radix_attention",
            *("RadixAttention.forward", "RadixAttention._eager_attention", "_unified_attention_with_output_impl"),
        ),
        "sglang.srt.layers.logits_processor.LogitsMetadata.from_forward_batch",
        # Overridden or called.
        *_of(
            f"{CACHE}.unified_radix_cache.UnifiedRadixCache",
            *("match_prefix", "init_load_back", "load_back_is_cache_owned", "prefix_device_indices"),
            *("path_device_indices", "checkpoint", "on_release", "_evict", "reset", "lock", "unlock"),
            *("evictable_size", "protected_size", "full_evictable_size", "full_protected_size", "all_values_flatten"),
            *("has_ongoing_prefetch", "cache_unfinished_req", "cache_finished_req", "insert_req"),
            *("inc_lock_ref", "dec_lock_ref"),
        ),
        f"{CACHE}.base_prefix_cache.BasePrefixCache.finish",
        *_of(
            f"{CACHE}.radix_cache.RadixCache",
            *("match_prefix", "cache_unfinished_req", "cache_finished_req", "insert", "evict", "reset"),
            *("inc_lock_ref", "dec_lock_ref", "evictable_size", "protected_size", "all_values_flatten"),
        ),
        *_of(
            f"{CACHE}.registry",
            *("create_unified_radix_cache", "_create_unified_radix_cache", "default_radix_cache_factory"),
        ),
        *_of(f"{CACHE}.common", "release_kv_cache", "checkpoint_kv_cache", "maybe_cache_unfinished_req"),
        f"{CACHE}.allocation.alloc_for_extend",
        *_of(f"{CACHE}.allocator.token.TokenToKVPoolAllocator", "alloc", "free", "available_size"),
        *_of(f"{CACHE}.allocator.paged.PagedTokenToKVPoolAllocator", "alloc", "free", "free_segment"),
        f"{CACHE}.allocator.base.BaseTokenToKVPoolAllocator.free_segment",
        *_of(f"{CACHE}.utils", "storage_namespace_seed", "get_storage_hash_str"),
        *_of("sglang.srt.plugins.hook_registry.HookRegistry", "register", "apply_hooks", "_apply_target"),
        # Where a layer's KV is stored, and attention begins: it is corrected between the two.
        f"{CACHE}.memory_pool.MHATokenToKVPool.set_kv_buffer",
        *_of(f"{CACHE}.memory_pool.MLATokenToKVPool", "set_kv_buffer", "set_mla_kv_buffer"),
        f"{ATTENTION}.base_attn_backend.AttentionBackend.forward",
        f"{ATTENTION}.hybrid_attn_backend.HybridAttnBackend.forward",
        # Each stores the new tokens of all sequences before a kernel reads any prefix: rows need that.
        f"{ATTENTION}.torch_native_backend.TorchNativeAttnBackend.forward_extend",
        f"{ATTENTION}.triton_backend.TritonAttnBackend.forward_extend",
        f"{ATTENTION}.flashattention_backend.FlashAttentionBackend.forward_extend",
        f"{ATTENTION}.trtllm_mha_backend.TRTLLMHAAttnBackend.forward_extend",
        *_of(f"{ATTENTION}.flashinfer_backend.FlashInferAttnBackend", "init_forward_metadata", "forward_extend"),
        *_of(f"{ATTENTION}.flashinfer_mla_backend.FlashInferMLAAttnBackend", "init_forward_metadata", "forward_extend"),
        # What counts by sequences or by slots.
        "sglang.srt.lora.lora_manager.LoRAManager.init_lora_modules",
        "sglang.srt.state_capturer.base.BaseTopkCapturer.get_topk",
    ),
    fields=(
        # What a batch holds per sequence or per token is shown with rows: a field that nobody knows is not.
        *_of(f"{MANAGERS}.schedule_batch", "ScheduleBatch", "Req", "ReqKvInfo"),
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch",
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo",
        f"{MANAGERS}.schedule_policy.PrefillAdder",
        f"{MANAGERS}.io_struct.TokenizedGenerateReqInput",
        *_of(
            f"{CACHE}.base_prefix_cache",
            *("MatchPrefixParams", "MatchResult", "InitLoadBackParams", "InsertParams", "EvictParams", "EvictResult"),
            "CacheRequestOutcome",
        ),
        f"{CACHE}.radix_cache.RadixKey",
        f"{CACHE}.registry.TreeCacheBuildContext",
        f"{CACHE}.cache_init_params.CacheInitParams",
        *_of(f"{CACHE}.memory_pool", "MHATokenToKVPool", "MLATokenToKVPool", "ReqToTokenPool"),
        f"{CACHE}.hicache_storage.HiCacheStorageConfig",
    ),
)
