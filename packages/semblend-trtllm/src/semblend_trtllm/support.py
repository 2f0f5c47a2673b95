"""Which models and configurations can be served, and the shape of their KV: read of the engine's arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from semblend_core import identity_of_weights
from semblend_core.serving import Namespaces
from semblend_trtllm.compat import UnsupportedTrtllmError
from semblend_trtllm.protocol import LlmArguments
from semblend_trtllm.settings import TrtllmSettings

Layout = Literal["NHD", "HND"]
TOKENS_PER_BLOCK = 32
"""TensorRT-LLM's own default."""


@dataclass(frozen=True)
class KvGeometry:
    """How a page of the engine's pool is read."""

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    layout: Layout

    @property
    def page_numbers(self) -> int:
        """Of K or of V in one page of one layer."""
        return self.block_size * self.kv_heads * self.head_dim


def model_config(llm_args: LlmArguments) -> dict[str, Any]:
    """The model's ``config.json``, its text part."""
    place = Path(str(llm_args.model)) / "config.json"
    if place.is_file():
        said: dict[str, Any] = json.loads(place.read_text())
    else:
        from transformers import AutoConfig  # Where TensorRT-LLM is, this is too.

        said = AutoConfig.from_pretrained(str(llm_args.model)).to_dict()
    return dict(said.get("text_config") or said)


def geometry_of(llm_args: LlmArguments, config: Mapping[str, Any], settings: TrtllmSettings) -> KvGeometry:
    heads = int(config["num_attention_heads"])
    layout: Layout
    if settings.kv_layout == "auto":
        backend = str(getattr(llm_args, "attn_backend", None) or "TRTLLM").upper()
        layout = "NHD" if backend == "VANILLA" else "HND"
    else:
        layout = "NHD" if settings.kv_layout == "nhd" else "HND"
    return KvGeometry(
        layers=int(config["num_hidden_layers"]),
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        block_size=int(getattr(llm_args.kv_cache_config, "tokens_per_block", None) or TOKENS_PER_BLOCK),
        layout=layout,
    )


def why_unsupported(llm_args: LlmArguments, config: Mapping[str, Any]) -> str | None:
    """Why nothing can be reused in this configuration; None where it can."""
    cache = llm_args.kv_cache_config
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    reasons = {
        "KV-cache block reuse is off: set kv_cache_config.enable_block_reuse to true": not getattr(
            cache, "enable_block_reuse", True
        ),
        # The other ranks' halves cannot be asked to hold a donor before its tokens are promised.
        "tensor parallelism is not supported yet": _size(llm_args, "tensor_parallel_size") > 1,
        "pipeline parallelism is not supported": _size(llm_args, "pipeline_parallel_size") > 1,
        "context parallelism is not supported": _size(llm_args, "context_parallel_size") > 1,
        "speculative decoding is not supported yet": getattr(llm_args, "speculative_config", None) is not None,
        "beam search is not supported": int(getattr(llm_args, "max_beam_width", None) or 1) > 1,
        "host offloading is not supported: leave kv_cache_config.host_cache_size out": bool(
            getattr(cache, "host_cache_size", None)
        ),
        f"a KV cache of type {getattr(cache, 'dtype', 'auto')} is not supported yet": str(
            getattr(cache, "dtype", "auto")
        ).lower()
        in ("fp8", "nvfp4"),
        "sliding-window attention is not supported yet": bool(window)
        or bool(getattr(cache, "max_attention_window", None)),
        "models with a latent KV cache (MLA) are not supported yet": "kv_lora_rank" in config,
        "models with several kinds of layers are not supported yet": len(set(config.get("layer_types") or ())) > 1,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def what_is_missed(llm_args: LlmArguments) -> str | None:
    """What is not reused in this configuration, and the setting that would change it; None: nothing."""
    if getattr(llm_args.kv_cache_config, "enable_partial_reuse", False):
        return (
            "kv_cache_config.enable_partial_reuse is on: where the engine finds a part of a block, nothing is loaded "
            "behind it. Set it to false, as `semblend-trtllm --print-config` does"
        )
    return None


def namespaces_of(llm_args: LlmArguments, geometry: KvGeometry) -> Namespaces:
    model, cache = str(llm_args.model), llm_args.kv_cache_config
    revision = getattr(llm_args, "revision", None)
    load_format = getattr(llm_args, "load_format", "auto")
    load_format = str(getattr(load_format, "name", load_format)).lower()
    return Namespaces(
        model=model,
        revision=str(revision or "local"),
        tokenizer=str(getattr(llm_args, "tokenizer", None) or model),
        dtype=f"{getattr(llm_args, 'dtype', 'auto')}/{getattr(cache, 'dtype', 'auto')}",
        kv_layout=f"trtllm-{geometry.layout}",
        block_size=geometry.block_size,
        extras=(
            ("quantization", str(getattr(llm_args, "quant_config", None))),
            ("weights", identity_of_weights(model, revision, load_format)),
        ),
    )


def check_shape(shape: tuple[int, ...], geometry: KvGeometry) -> None:
    """Whether a pool is [blocks, layers, K and V, page]. UnsupportedTrtllmError where it is not."""
    if len(shape) != 4 or shape[1:] != (geometry.layers, 2, geometry.page_numbers):
        expected = f"[blocks, {geometry.layers}, 2, {geometry.page_numbers}]"
        raise UnsupportedTrtllmError(
            f"the engine's KV pool is {list(shape)}, and the model's config.json makes it {expected}"
        )


def _size(llm_args: LlmArguments, name: str) -> int:
    return int(getattr(llm_args, name, None) or 1)
