"""What SemBlend is not ready for: said once at start for an engine, counted for a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semblend_core.kv import why_keys_do_not_move
from semblend_core.serving.tree import SlotPool
from semblend_sglang.compat.attention import why_attention_unsupported
from semblend_sglang.compat.stored_types import attention_layers, why_not_stored_so, why_scales_unsupported


@dataclass(frozen=True)
class _Resolved:
    arguments: Any
    decided: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.decided[name] if name in self.decided else getattr(self.arguments, name)


def resolved(arguments: Any) -> Any:
    """SGLang's arguments with what it decided for those left open: newer versions keep their decisions beside them."""
    if getattr(arguments, "_declarations_materialized", False):
        return arguments
    decided: dict[str, Any] = {}
    for _, fields in getattr(arguments, "_resolved_overrides", None) or ():
        decided |= fields
    return _Resolved(arguments, decided)


def why_unsupported(ctx: Any) -> str | None:
    """Why nothing can be reused in this engine; None where it can. ``ctx``: what SGLang builds a cache from."""
    arguments = resolved(ctx.server_args)
    engine_pool = ctx.params.token_to_kv_pool_allocator.get_kvcache()

    def wants(*names: str) -> bool:
        """Whether any of these options is on; an SGLang that has no such option does not want it."""
        return any(bool(getattr(arguments, name, False)) for name in names)

    reasons = {
        "the radix cache is disabled": ctx.disable_radix_cache,
        "pipeline parallelism is not supported yet": arguments.pp_size > 1,
        "data-parallel attention is not supported yet": wants("enable_dp_attention"),
        "context parallelism is not supported yet": any(
            (getattr(arguments, name, None) or 1) > 1 for name in ("attn_cp_size", "dcp_size")
        ),
        "the hierarchical cache with tensor parallelism is not supported yet": (
            ctx.tp_size > 1 and ctx.enable_hierarchical_cache
        ),
        # They cut a batch by its tokens, rows included, and were never run.
        "tokens scattered over tensor-parallel ranks are not supported yet": wants(
            "enable_attn_tp_input_scattered", "enable_layernorm_sp"
        ),
        "SGLang keeps the KV of sliding windows in a pool of its own and drops what is behind them: add "
        "--disable-hybrid-swa-memory, and one pool keeps it all": ctx.is_hybrid_swa,
        # Such as Llama 4.
        "chunked attention is not supported: what a token sees depends on where its chunk begins": bool(
            getattr(ctx.model_config, "attention_chunk_size", None)
        ),
        "state-space models are not supported yet": ctx.is_hybrid_ssm,
        f"speculative decoding (--speculative-algorithm {arguments.speculative_algorithm}) is not supported yet": (
            arguments.speculative_algorithm is not None
        ),
        "disaggregated prefill and decode are not supported yet": arguments.disaggregation_mode != "null",
        "diffusion language models are not supported": wants("dllm_algorithm"),
        "embedding models have no reusable prefill": not ctx.model_config.is_generation,
        "encoder-decoder models are not supported yet": bool(ctx.model_config.is_encoder_decoder),
        # SGLang counts what such an adapter gets by sequences, and rows are none behind attention. Which layers have
        # adapters is decided when they are loaded, from what is asked for or from what the first adapters bring.
        "adapters of the output layer (lm_head) are not supported yet": _adapts_output_layer(ctx),
        "models that embed runs of tokens (n-grams) are not supported yet": bool(
            getattr(getattr(ctx.tp_worker.model_runner, "ngram_embedding_manager", None), "enabled", False)
        ),
        # It compares each slot with what a forward left for it, and none wrote what was moved.
        "the KV canary (--kv-canary) is not supported": getattr(arguments, "kv_canary", "none") != "none",
        # Each of these runs one forward batch in several parts, or cuts it by requests: rows belong to neither.
        "prefill split by layers (--enable-pdmux) is not supported": wants("enable_pdmux"),
        "two-batch overlap (--enable-two-batch-overlap) is not supported yet": wants("enable_two_batch_overlap"),
        "multi-item scoring (--enable-mis) is not supported": wants("enable_mis"),
        # An older SGLang, whose cache would ask for an exact prefix behind what SemBlend claims, has no such mode.
        "the hierarchical cache is supported where its host memory is a cache (--hicache-host-memory-mode cache), "
        "from SGLang 0.5.22 on": ctx.enable_hierarchical_cache
        and getattr(arguments, "hicache_host_memory_mode", None) != "cache",
        "an external KV cache is not supported yet": wants(
            "enable_lmcache", "enable_flexkv", "enable_unified_cache_external_linker"
        ),
        "deterministic inference is asked for, and what is reused depends on earlier requests": wants(
            "enable_deterministic_inference"
        ),
    }
    found = next((why for why, applies in reasons.items() if applies), None)
    return (
        found
        or why_attention_unsupported(ctx.tp_worker.model_runner)
        or _why_pool_unsupported(engine_pool)
        or why_scales_unsupported(ctx, engine_pool)
        # Prompts with images or sound are declined one by one.
        or why_keys_do_not_move(ctx.model_config.hf_text_config, by_layer=True, text_only=True)
    )


def why_no_correction(ctx: Any, pool: SlotPool) -> str | None:
    """Why KV that was moved should not be corrected inside the forward; None where it should."""
    if not pool.turns_alike:
        return "corrections of layers that turn keys differently make answers worse"
    if _has_windows(ctx):
        return "in layers that attend to a window corrections make answers worse"
    return None


def _has_windows(ctx: Any) -> bool:
    """The config knows, or SGLang's layers do."""
    if "sliding_attention" in (getattr(ctx.model_config.hf_text_config, "layer_types", None) or ()):
        return True
    return any(layer.sliding_window_size > -1 for layer in attention_layers(ctx))


def why_not_for(req: Any, key: Any) -> str | None:
    """Why nothing may be reused for this request. ``key``: what SGLang matches of it, where it does."""
    if getattr(req, "session", None) is not None or getattr(req, "session_id", None) is not None:
        return "it belongs to a session, which keeps KV by rules of its own"
    if req.multimodal_inputs is not None or req.input_embeds is not None:
        return "a part of its prompt is no tokens"
    if getattr(req, "positional_embed_overrides", None) is not None:
        return "its embeddings are overridden"
    if getattr(req, "token_type_ids", None) is not None:
        return "its tokens have types"
    if req.return_hidden_states:
        return "it wants the hidden states of its whole prompt"
    if getattr(req, "return_routed_experts", False) or getattr(req, "return_indexer_topk", False):
        # SGLang keeps these by slot. No forward wrote those that KV is moved into, and others used them before.
        return "it wants what the model chose at each of its tokens"
    if getattr(req, "beam_group", None) is not None:
        # Its prompt never enters the exact cache, and its beams take its row of slots over when it is computed.
        return "it is searched by beams"
    if key is not None and getattr(key, "is_bigram", False):
        return "the exact cache keeps it by pairs of tokens"
    if key is not None and len(key) < len(req.origin_input_ids) - 1:
        return "it wants the log-probabilities of its prompt"
    return None


def _adapts_output_layer(ctx: Any) -> bool:
    adapters = getattr(ctx.tp_worker.model_runner, "lora_manager", None)
    return getattr(adapters, "lm_head_module", None) is not None


def _why_pool_unsupported(engine_pool: Any) -> str | None:
    kind = type(engine_pool).__name__
    if kind not in ("MHATokenToKVPool", "MLATokenToKVPool"):
        return f"a KV pool of type {kind} is not known"
    why = why_not_stored_so(engine_pool)
    if why is not None:
        return why
    layout = str(getattr(engine_pool, "kv_cache_layout", "nhd")).lower()
    if layout != "nhd":
        return f"the KV layout {layout} is not supported yet"
    return None
