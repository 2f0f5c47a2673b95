"""Ways to run vLLM in which reuse would be wrong: it is off, the log says why, and vLLM runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import KVTransferConfig
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from semblend_core.kv import Rotation
from semblend_vllm.compat.kv_memory import kv_memory
from semblend_vllm.compat.stored_types import why_not_stored_so
from semblend_vllm.compat.support import why_unsupported
from semblend_vllm.compat.versions import UnsupportedVllmError


def off(caplog: pytest.LogCaptureFixture) -> str:
    (error,) = [record.getMessage() for record in caplog.records if record.name.startswith("semblend")]
    assert error.startswith("SemBlend is off: ")
    return error


@pytest.mark.parametrize("setting", [{"enable_dbo": True}, {"ubatch_size": 2}])
def test_batches_that_are_split_in_two(
    new_overlapping: Callable[..., Any], caplog: pytest.LogCaptureFixture, setting: dict[str, Any]
) -> None:
    def split(config: Any) -> None:
        for name, value in setting.items():
            setattr(config.parallel_config, name, value)

    with caplog.at_level(logging.ERROR, "semblend_vllm"):
        engine = new_overlapping(change=split)
    assert "--enable-dbo" in off(caplog)
    assert engine.side is None


@pytest.mark.parametrize("method", ["eagle3", "draft_model", "suffix"])
def test_guesses_of_a_drafter(
    new_overlapping: Callable[..., Any], caplog: pytest.LogCaptureFixture, method: str
) -> None:
    engine = new_overlapping()  # vLLM would load a drafter: only what the connector is told is changed.
    config = engine.scheduler.vllm_config
    kv_cache_config = engine.scheduler.kv_cache_config
    config.speculative_config = SimpleNamespace(method=method)
    why = why_unsupported(config, kv_cache_config)
    assert why is not None
    assert f"{method!r} is not supported, only by 'ngram'" in why
    config.speculative_config.method = "ngram"
    assert why_unsupported(config, kv_cache_config) is None


def test_experts_of_each_token(new_overlapping: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """vLLM asks for them by an option of the model, or of what else a step gives."""

    def asked(config: Any) -> None:
        where = getattr(config, "aux_output_config", config.model_config)
        where.enable_return_routed_experts = True

    with caplog.at_level(logging.ERROR, "semblend_vllm"):
        engine = new_overlapping(change=asked)
    assert "--enable-return-routed-experts" in off(caplog)
    assert engine.side is None


@pytest.mark.parametrize(("block_size", "of_attention"), [(128, 64), (256, 64), (64, 64)])
def test_blocks_that_attention_cuts_into_smaller_ones(block_size: int, of_attention: int) -> None:
    """vLLM speaks of its own blocks, and registers the pool as attention has it."""
    config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=block_size, cache_dtype="auto"),
        model_config=SimpleNamespace(use_mla=True, get_head_size=lambda: 48),
    )
    pools = {f"model.layers.{n}": torch.zeros(2 * block_size // of_attention, of_attention, 48) for n in range(2)}
    rotation = Rotation.from_config({"model_type": "deepseek_v2", "kv_lora_rank": 32, "qk_rope_head_dim": 16})
    if block_size == of_attention:
        assert kv_memory(config, pools, [rotation] * 2).block_size == block_size
        return
    with pytest.raises(UnsupportedVllmError, match="add --block-size 64"):
        kv_memory(config, pools, [rotation] * 2)


def test_chunked_attention_without_the_hybrid_manager(
    new_overlapping: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM then keeps these layers' KV like that of full attention, and says so in the same specification."""
    with caplog.at_level(logging.ERROR, "semblend_vllm"):
        engine = new_overlapping(attention_chunk_size=64)
    assert "chunked attention" in off(caplog)
    assert engine.side is None


def test_a_sliding_window_whose_kv_is_kept_is_none_of_them(new_overlapping: Callable[..., Any]) -> None:
    assert new_overlapping(sliding_window=64).side is not None


@pytest.mark.parametrize("asked", ["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"])
def test_types_of_kv_that_can_be_moved(new_overlapping: Callable[..., Any], asked: str) -> None:
    engine = new_overlapping()
    config = engine.scheduler.vllm_config
    config.cache_config.cache_dtype = asked
    assert why_unsupported(config, engine.scheduler.kv_cache_config) is None


@pytest.mark.parametrize(
    ("asked", "change", "said"),
    [
        *((asked, {}, f"type {asked} is not supported, only fp8") for asked in ("fp8_ds_mla", "fp8_per_token_head")),
        *((asked, {}, f"type {asked} is not supported, only fp8") for asked in ("int8_per_token_head", "nvfp4")),
        ("fp8", {"calculate_kv_scales": True}, "--calculate-kv-scales"),
        ("fp8", {"kv_cache_dtype_skip_layers": ["0"]}, "--kv-cache-dtype-skip-layers"),
        ("fp8", {"enable_sleep_mode": True}, "sleep mode"),
        ("fp8", {"use_mla": True}, "latents (MLA) in fp8"),
    ],
)
def test_types_of_kv_that_cannot(asked: str, change: dict[str, Any], said: str) -> None:
    """vLLM would check what it is given against the device: only what the connector is told is changed."""
    cache = SimpleNamespace(cache_dtype=asked, **change)
    config = SimpleNamespace(cache_config=cache, model_config=SimpleNamespace(**change))
    assert said in str(why_not_stored_so(config))


FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.float32)
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.float32, sliding_window=64)
LATENT = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=576, dtype=torch.float32)
STATE = MambaSpec(block_size=16, shapes=((4, 4),), dtypes=(torch.float32,))


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ([FULL, WINDOW], "add --disable-hybrid-kv-cache-manager"),
        ([WINDOW], "all layers attend to a window"),
        ([LATENT, STATE], "cannot be moved"),
        ([LATENT, LATENT], "several kinds of KV"),
        ([FULL, STATE], "cannot be moved"),
        ([FULL, FULL], "several kinds of KV"),
    ],
)
def test_kinds_of_kv(new_overlapping: Callable[..., Any], specs: list[Any], said: str) -> None:
    config = new_overlapping().scheduler.vllm_config
    groups = [KVCacheGroupSpec([f"layer.{number}"], spec) for number, spec in enumerate(specs)]
    why = why_unsupported(config, SimpleNamespace(kv_cache_groups=groups))
    assert why is not None
    assert said in why


def test_latents_are_moved_without_an_index_of_theirs(new_overlapping: Callable[..., Any]) -> None:
    config = new_overlapping().scheduler.vllm_config
    groups = SimpleNamespace(kv_cache_groups=[KVCacheGroupSpec(["layer.0"], LATENT)])
    assert why_unsupported(config, groups) is None
    config.model_config.hf_text_config.index_topk = 2048
    assert "sparse attention" in str(why_unsupported(config, groups))


@pytest.mark.parametrize("place", [0, 1])
def test_beside_another_connector(
    new_overlapping: Callable[..., Any], caplog: pytest.LogCaptureFixture, tmp_path: Path, place: int
) -> None:
    connectors = [{"kv_connector": "ExampleConnector", "kv_role": "kv_both"}]
    connectors[0]["kv_connector_extra_config"] = {"shared_storage_path": str(tmp_path)}  # type: ignore[assignment]
    ours = {"kv_connector": "SemBlendConnectorV1", "kv_connector_module_path": "semblend_vllm", "kv_role": "kv_both"}
    connectors.insert(place, ours)

    def both(config: Any) -> None:
        config.scheduler_config.disable_hybrid_kv_cache_manager = True
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="MultiConnector", kv_role="kv_both", kv_connector_extra_config={"connectors": connectors}
        )

    with caplog.at_level(logging.ERROR, "semblend_vllm"):
        engine = new_overlapping(change=both)
    error = off(caplog)
    assert "inside MultiConnector" in error
    assert "exact keys" in error
    multi = engine.scheduler.connector
    assert multi._connectors[place].unsupported is not None
    request = engine.add(list(range(100, 400)))
    output = engine.scheduler.schedule()
    assert request.request_id in output.num_scheduled_tokens


def test_a_scheduler_without_its_connector_says_that_it_does_nothing(
    new_overlapping: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    def alone(config: Any) -> None:
        config.kv_transfer_config = None

    with caplog.at_level(logging.WARNING, "semblend_vllm"):
        new_overlapping(change=alone)
    assert "SemBlendScheduler runs without SemBlendConnectorV1" in caplog.text
