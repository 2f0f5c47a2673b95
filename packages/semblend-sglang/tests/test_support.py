"""What is declined at start, what per request, and which providers are accepted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from semblend_core.kv import Rotation, Scales
from semblend_sglang import factory
from semblend_sglang.compat import generations
from semblend_sglang.compat.stored_types import scales_of
from semblend_sglang.compat.support import resolved, why_no_correction, why_not_for, why_unsupported
from semblend_sglang.worker.pool import slot_pool_of

LLAMA = {"model_type": "llama", "rope_theta": 1e4, "head_dim": 64, "hidden_size": 128, "num_attention_heads": 2}


class MHATokenToKVPool(SimpleNamespace):
    """Known by its name, as SGLang's is."""


def context(**changes: Any) -> Any:
    """What SGLang hands to a factory; ``changes`` by dotted name with ``__`` for the dot."""
    pool = MHATokenToKVPool(store_dtype=torch.bfloat16, dtype=torch.bfloat16)
    made = SimpleNamespace(
        server_args=SimpleNamespace(
            pp_size=1, enable_dp_attention=False, speculative_algorithm=None, disaggregation_mode="null"
        ),
        params=SimpleNamespace(token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: pool)),
        model_config=SimpleNamespace(is_generation=True, is_encoder_decoder=False, hf_text_config=dict(LLAMA)),
        pool=pool,
        runner=(runner := SimpleNamespace(prefill_attention_backend_str="triton")),
        tp_worker=SimpleNamespace(model_runner=runner),
        disable_radix_cache=False,
        enable_hierarchical_cache=False,
        tp_size=1,
        is_hybrid_swa=False,
        is_hybrid_ssm=False,
    )
    for name, value in changes.items():
        *path, last = name.split("__", 1)
        owner = made
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, value)
    return made


class RadixAttention(torch.nn.Module):
    """Known by its name, as SGLang's is."""

    def __init__(self, layer: int, k_scale: Any = None, v_scale: Any = None, window: int = -1) -> None:
        super().__init__()
        self.layer_id, self.k_scale, self.v_scale = layer, k_scale, v_scale
        self.sliding_window_size = window


def attention(**scales: Any) -> torch.nn.Module:
    return torch.nn.ModuleList([RadixAttention(0), RadixAttention(1, **scales)])


E4M3 = {"pool__store_dtype": torch.uint8, "pool__dtype": torch.float8_e4m3fn}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_is_supported(dtype: torch.dtype) -> None:
    scaled = attention(k_scale=torch.tensor(0.5), v_scale=torch.tensor(2.0))
    assert why_unsupported(context(**E4M3 | {"pool__dtype": dtype, "runner__model": scaled})) is None


def test_latents_in_fp8_are_not() -> None:
    class MLATokenToKVPool(MHATokenToKVPool):
        pass

    pool = MLATokenToKVPool(store_dtype=torch.uint8, dtype=torch.float8_e4m3fn)
    allocator = SimpleNamespace(get_kvcache=lambda: pool)
    assert "latents (MLA) in fp8" in str(why_unsupported(context(params__token_to_kv_pool_allocator=allocator)))


def fp8_pool(tokens: int = 40) -> MHATokenToKVPool:
    buffers = ([torch.zeros(tokens, 2, 16, dtype=torch.uint8) for _ in range(2)] for _ in "kv")
    return MHATokenToKVPool(
        store_dtype=torch.uint8, dtype=torch.float8_e4m3fn, **dict(zip(("k_buffer", "v_buffer"), buffers, strict=True))
    )


@pytest.mark.parametrize(("backend", "scaled"), [("triton", True), ("fa3", True), ("torch_native", False)])
def test_scales_are_those_that_the_backend_stores_with(backend: str, scaled: bool) -> None:
    model = attention(k_scale=torch.tensor(0.5), v_scale=torch.tensor(2.0))
    ctx = context(runner__prefill_attention_backend_str=backend, runner__model=model)
    found = scales_of(ctx, fp8_pool())
    assert found == (Scales((1.0, 0.5), (1.0, 2.0)) if scaled else None)


@pytest.mark.parametrize("backend", ["fa4", "trtllm_mha"])
def test_fp8_is_refused_where_nobody_read_how_it_is_stored(backend: str) -> None:
    why = str(why_unsupported(context(**E4M3, runner__prefill_attention_backend_str=backend)))
    assert f"fp8 with prefill attention by {backend}" in why
    assert "triton" in why


def test_scales_of_one_are_none() -> None:
    model = attention(k_scale=torch.tensor(1.0), v_scale=torch.tensor(1.0))
    assert scales_of(context(runner__model=model), fp8_pool()) is None
    assert scales_of(context(runner__model=model), context().pool) is None


def test_bytes_of_the_pool_are_read_as_numbers_with_their_scales() -> None:
    engine_pool, rotation = fp8_pool(), Rotation.from_config({**LLAMA, "head_dim": 16})
    pool = slot_pool_of(engine_pool, rotation, None, Scales((1.0, 0.5), (1.0, 2.0)))
    numbers = torch.randn(40, 2, 16).to(torch.float8_e4m3fn)
    engine_pool.k_buffer[1].copy_(numbers.view(torch.uint8))
    slots = torch.tensor([3, 30, 7])
    (read,) = pool.keys_at([1], slots)
    assert torch.equal(read, numbers.float()[slots] * 0.5)
    taken = pool.take_slots(slots)
    assert torch.equal(taken.keys[1].view(torch.uint8), engine_pool.k_buffer[1][slots])


def test_an_ordinary_engine_is_supported() -> None:
    assert why_unsupported(context()) is None


def test_a_hierarchical_cache_is_supported_with_storage_or_without() -> None:
    tiers = {"enable_hierarchical_cache": True, "server_args__hicache_host_memory_mode": "cache"}
    assert why_unsupported(context(**tiers)) is None
    assert why_unsupported(context(**tiers, server_args__hicache_storage_backend="dynamic")) is None


WINDOWS = {"model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention"]}
PLAIN, FASTER = ({"rope_type": "default", "rope_theta": theta} for theta in (1e6, 1e4))


@pytest.mark.parametrize("local", [PLAIN, FASTER])
def test_sliding_windows_whose_kv_is_kept_are_supported_however_they_turn(local: dict[str, Any]) -> None:
    parameters = {"sliding_attention": local, "full_attention": PLAIN}
    config = {**LLAMA, **WINDOWS, "rope_theta": None, "rope_parameters": parameters}
    assert why_unsupported(context(model_config__hf_text_config=config)) is None


def test_models_that_take_images_are_supported_on_text() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 8, 8]}
    config = {**LLAMA, "model_type": "qwen2_vl_text", "rope_theta": None, "rope_parameters": rope}
    assert why_unsupported(context(model_config__hf_text_config=config, model_config__model_is_mrope=True)) is None


@pytest.mark.parametrize(
    ("alike", "kinds", "windows", "says"),
    [
        (True, None, [-1, -1], None),
        (True, None, [-1, 127], "attend to a window"),
        (True, ["sliding_attention", "full_attention"], [], "attend to a window"),
        (False, None, [-1, -1], "turn keys differently"),
    ],
)
def test_what_was_moved_is_corrected_where_that_makes_answers_better(
    alike: bool, kinds: list[str] | None, windows: list[int], says: str | None
) -> None:
    config = SimpleNamespace(layer_types=kinds)
    model = torch.nn.ModuleList([RadixAttention(at, window=window) for at, window in enumerate(windows)])
    made: Any = SimpleNamespace(turns_alike=alike)
    why = why_no_correction(context(model_config__hf_text_config=config, runner__model=model), made)
    assert why is None if says is None else says in str(why)


@pytest.mark.parametrize("backend", ["torch_native", "triton", "fa3", "fa4", "trtllm_mha"])
def test_prefill_attention_that_writes_first_is_supported(backend: str) -> None:
    assert why_unsupported(context(runner__prefill_attention_backend_str=backend)) is None


@pytest.mark.parametrize("backend", ["trtllm_mla", "flashmla", "flex_attention", "intel_amx", "of tomorrow", None])
def test_any_other_prefill_attention_is_declined_with_a_way_out(backend: str | None) -> None:
    why = str(why_unsupported(context(runner__prefill_attention_backend_str=backend)))
    assert f"by {backend} " in why
    assert "--attention-backend triton" in why


def test_what_sglang_decided_counts_and_not_what_was_left_open() -> None:
    decided = [("first", {"enable_dp_attention": False}), ("then", {"enable_dp_attention": True})]
    assert "data-parallel" in str(why_unsupported(context(server_args___resolved_overrides=decided)))
    arguments = SimpleNamespace(chunked_prefill_size=None, max_prefill_tokens=16384)
    assert factory._most_tokens(resolved(arguments)) == 16384
    arguments._resolved_overrides = [("by memory", {"chunked_prefill_size": 4096})]
    assert factory._most_tokens(resolved(arguments)) == 4096
    arguments._declarations_materialized, arguments.chunked_prefill_size = True, 2048
    assert factory._most_tokens(resolved(arguments)) == 2048


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"disable_radix_cache": True}, "radix cache is disabled"),
        ({"tp_size": 2, "enable_hierarchical_cache": True}, "hierarchical cache with tensor parallelism"),
        ({"server_args__attn_cp_size": 2}, "context parallelism"),
        ({"server_args__dcp_size": 2}, "context parallelism"),
        ({"server_args__enable_attn_tp_input_scattered": True}, "scattered"),
        ({"server_args__enable_layernorm_sp": True}, "scattered"),
        ({"server_args__pp_size": 2}, "pipeline"),
        ({"server_args__enable_dp_attention": True}, "data-parallel"),
        ({"is_hybrid_swa": True}, "--disable-hybrid-swa-memory"),
        ({"model_config__attention_chunk_size": 8192}, "chunked attention"),
        ({"is_hybrid_ssm": True}, "state-space"),
        ({"server_args__speculative_algorithm": "EAGLE"}, "--speculative-algorithm EAGLE"),
        ({"server_args__speculative_algorithm": "NGRAM"}, "--speculative-algorithm NGRAM"),
        ({"server_args__disaggregation_mode": "prefill"}, "disaggregated"),
        ({"model_config__is_generation": False}, "embedding"),
        ({"model_config__is_encoder_decoder": True}, "encoder-decoder"),
        ({"server_args__enable_pdmux": True}, "--enable-pdmux"),
        ({"server_args__enable_two_batch_overlap": True}, "--enable-two-batch-overlap"),
        ({"server_args__enable_mis": True}, "--enable-mis"),
        ({"runner__lora_manager": SimpleNamespace(lm_head_module=object())}, "lm_head"),
        ({"runner__ngram_embedding_manager": SimpleNamespace(enabled=True)}, "n-grams"),
        ({"server_args__kv_canary": "log"}, "--kv-canary"),
        ({"server_args__enable_deterministic_inference": True}, "deterministic"),
        ({"enable_hierarchical_cache": True}, "from SGLang 0.5.22 on"),
        (
            {"enable_hierarchical_cache": True, "server_args__hicache_host_memory_mode": "buffer_only"},
            "--hicache-host-memory-mode cache",
        ),
        ({"server_args__enable_lmcache": True}, "external KV cache"),
        ({"server_args__enable_flexkv": True}, "external KV cache"),
        ({"pool__store_dtype": torch.uint8}, "uint8"),
        (
            {"pool__is_quantized_kv_cache": True, "pool__quant_method": SimpleNamespace(name="mxfp4")},
            "a quantisation of its own (mxfp4)",
        ),
        ({**E4M3, "pool__store_dtype": torch.float16}, "float8_e4m3fn as torch.float16"),
        ({**E4M3, "runner__model": attention(k_scale=torch.ones(2))}, "a scale for each head"),
        ({"pool__kv_cache_layout": "hnd"}, "hnd"),
        ({"model_config__hf_text_config": {**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 2}}}, "dynamic"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], says: str) -> None:
    assert says in str(why_unsupported(context(**changes)))


@pytest.mark.parametrize(
    ("changes", "wants"),
    [
        ({}, None),
        ({"tp_size": 2}, "tensor parallelism"),
        ({"enable_hierarchical_cache": True, "server_args__hicache_host_memory_mode": "cache"}, "hierarchical cache"),
    ],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_what_an_older_sglang_is_not_used_for_is_named(
    changes: dict[str, Any], wants: str | None, is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "takes_checkpoints", lambda: is_new)
    said = generations.why_too_old(context(**changes))
    if is_new or wants is None:
        assert said is None
    else:
        assert f"{wants} is supported from SGLang 0.5.22 on" in str(said)


@pytest.mark.parametrize(("changed", "says"), [(None, "flashmla"), ("ScheduleBatch has other fields", "ScheduleBatch")])
def test_an_engine_that_is_declined_gets_sglangs_own_cache_and_one_error_line(
    changed: str | None, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stock = object()
    monkeypatch.setattr(factory, "why_not_hooked", lambda: None)
    monkeypatch.setattr(factory, "why_changed", lambda: changed)
    monkeypatch.setattr(factory, "stock_cache", lambda ctx: stock)
    assert factory.build_cache(context(runner__prefill_attention_backend_str="flashmla")) is stock
    (said,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert says in said


def request(**changes: Any) -> Any:
    fields = {
        "session": None,
        "session_id": None,
        "multimodal_inputs": None,
        "input_embeds": None,
        "return_hidden_states": False,
        "origin_input_ids": range(100),
    }
    return SimpleNamespace(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({}, range(99), None),
        ({"session_id": "s"}, range(99), "session"),
        ({"multimodal_inputs": object()}, range(99), "no tokens"),
        ({"positional_embed_overrides": object()}, range(99), "overridden"),
        ({"token_type_ids": [0] * 100}, range(99), "types"),
        ({"return_hidden_states": True}, range(99), "hidden states"),
        ({"return_routed_experts": True}, range(99), "at each of its tokens"),
        ({"return_indexer_topk": True}, range(99), "at each of its tokens"),
        ({"beam_group": object()}, range(99), "searched by beams"),
        ({}, range(10), "log-probabilities"),
    ],
)
def test_requests_that_are_declined_name_why(changes: dict[str, Any], key: Any, says: str | None) -> None:
    why = why_not_for(request(**changes), key)
    assert why is None if says is None else says in str(why)
