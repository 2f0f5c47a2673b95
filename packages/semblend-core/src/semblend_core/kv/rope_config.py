"""Reading a model's config: where the rotated part of a key lies and with which frequencies, or why that is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from semblend_core.kv.rope_scaling import UnsupportedRotationError, inverse_frequencies

_ROPE_FIELDS = ("rope_parameters", "rope_scaling", "rope_theta", "rotary_dim", "rotary_emb_base", "rotary_pct")
_NOT_POSITION_LINEAR = {
    "mrope_section": "multimodal rotary positions have three parts",
    "dual_chunk_attention_config": "dual chunk attention stores keys at positions within a chunk",
}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """The fields of a config that decide how its keys move, with every default filled in. Sizes in components."""

    key_dim: int
    start: int
    size: int
    interleaved: bool
    frequencies: Tensor
    """Float32 [size / 2] on the CPU, in radians per token."""


def read_rope_config(
    config: object, interleaved: bool | None, layer_kind: str | None = None, *, text_only: bool = False
) -> RopeConfig:
    """``layer_kind``: one of the config's ``layer_types``, where they rotate differently. ``text_only``: of what the
    model computes, only text without images counts."""
    fields = _as_mapping(config)
    if layer_kind is not None:
        fields = _of_kind(fields, layer_kind)
    family = _family(fields, interleaved)
    parameters = _rope_parameters(fields)
    if text_only:
        parameters = _on_text(parameters)
    if family.scaled and not parameters:
        raise UnsupportedRotationError(
            f"model_type={fields['model_type']!r} needs rope_parameters; the config has none"
        )
    _refuse_what_does_not_turn_evenly(fields, parameters)
    theta = parameters.get("rope_theta") or fields.get("rope_theta") or fields.get("rotary_emb_base")
    if family.latent:
        start, size = _whole(fields, "kv_lora_rank"), _whole(fields, "qk_rope_head_dim")
        key_dim = start + size
    else:
        start, key_dim = 0, _head_dim(fields)
        size = _rotary_size(fields, parameters, family, key_dim)
    if size < 2 or size % 2 or start + size > key_dim:
        raise UnsupportedRotationError(f"cannot rotate {size} of a key's {key_dim} components: pairs are needed")
    frequencies = inverse_frequencies(
        size, float(theta or family.default_theta), parameters, fields.get("max_position_embeddings")
    )
    return RopeConfig(key_dim, start, size, _is_interleaved(fields, family, interleaved), frequencies)


def layer_kinds(config: object) -> tuple[str, ...]:
    """By layer, where layers rotate differently: Gemma 3's windows turn faster. Empty where all rotate alike."""
    fields = _as_mapping(config)
    kinds, parameters = fields.get("layer_types") or (), fields.get("rope_parameters") or {}
    if not kinds or not isinstance(parameters, Mapping) or not set(kinds) <= parameters.keys():
        return ()
    first = parameters[kinds[0]]
    return tuple(kinds) if any(parameters[kind] != first for kind in kinds) else ()


def _of_kind(fields: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The config of a model all of whose layers are of this kind."""
    parameters = fields["rope_parameters"][kind]
    if not isinstance(parameters, Mapping) or not parameters.get("rope_theta"):
        raise UnsupportedRotationError(f"rope_parameters[{kind!r}]={parameters!r} says not how these layers rotate")
    return {
        **fields,
        "rope_parameters": parameters,
        "rope_scaling": None,
        "layer_types": None,
        "rope_local_base_freq": None,
    }


def _as_mapping(config: object) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    to_dict = getattr(config, "to_dict", None)
    if to_dict is None:
        raise TypeError(f"a config is a dict or a transformers config, got {type(config).__name__}")
    fields: Mapping[str, Any] = to_dict()
    return fields


def _family(fields: Mapping[str, Any], interleaved: bool | None) -> RopeFamily:
    model_type = fields.get("model_type")
    if fields.get("alibi") or fields.get("use_alibi") or fields.get("position_embedding_type") == "alibi":
        raise UnsupportedRotationError(f"alibi=True: model_type={model_type!r} has no rotary embedding")
    known = FAMILIES.get(str(model_type))
    if known is not None:
        return known
    if not any(fields.get(name) for name in _ROPE_FIELDS):
        hint = "; pass its text_config" if "text_config" in fields else ""
        raise UnsupportedRotationError(
            f"model_type={model_type!r} has no rotary embedding: none of {', '.join(_ROPE_FIELDS)} is set{hint}"
        )
    if "kv_lora_rank" in fields:
        raise UnsupportedRotationError(f"model_type={model_type!r} is not known among models with kv_lora_rank (MLA)")
    if interleaved is None or not (fields.get("rope_theta") or _rope_parameters(fields).get("rope_theta")):
        raise UnsupportedRotationError(
            f"model_type={model_type!r} is not known, so neither is which components of its keys form a pair: pass "
            "interleaved=True or False, with rope_theta set, and let the self-test confirm it"
        )
    return RopeFamily(interleaved=interleaved)


def _rope_parameters(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    new, old = fields.get("rope_parameters") or {}, fields.get("rope_scaling") or {}
    if new and old and new != old:
        raise UnsupportedRotationError(f"rope_parameters={new!r} and rope_scaling={old!r} contradict each other")
    parameters = new or old
    if not isinstance(parameters, Mapping):
        raise UnsupportedRotationError(f"rope_parameters={parameters!r} is not a dict")
    layer_types = fields.get("layer_types") or ()
    nested = {key: value for key, value in parameters.items() if isinstance(value, Mapping) or key in layer_types}
    if nested:
        kinds = list(nested.values())
        if any(kind != kinds[0] for kind in kinds):
            raise UnsupportedRotationError(f"rope_parameters={nested!r} differ between layers")
        parameters = kinds[0] or {}
    if fields.get("original_max_position_embeddings"):
        # Where a config says it twice, models take the outer one.
        parameters = {
            **parameters,
            "original_max_position_embeddings": fields["original_max_position_embeddings"],
        }
    return parameters


def _on_text(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """With equal parts of a position, whichever part turns a pair, it turns as if positions had one part."""
    if not parameters.get("mrope_section"):
        return parameters
    plain = {name: value for name, value in parameters.items() if name != "mrope_section"}
    for name in ("rope_type", "type"):
        if plain.get(name) == "mrope":
            plain[name] = "default"
    return plain


def _refuse_what_does_not_turn_evenly(fields: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    for field, why in _NOT_POSITION_LINEAR.items():
        value = fields.get(field) or parameters.get(field)
        if value:
            raise UnsupportedRotationError(f"{field}={value!r} is not supported: {why}")
    layers_with = fields.get("no_rope_layers")
    if layers_with and not all(layers_with):
        raise UnsupportedRotationError(f"no_rope_layers={layers_with!r}: layers without rotation are not supported")
    if fields.get("rope_local_base_freq") and fields["rope_local_base_freq"] != fields.get("rope_theta"):
        raise UnsupportedRotationError(
            f"rope_local_base_freq={fields['rope_local_base_freq']!r}: frequencies differ between layers, and which is "
            "whose is not said; give rope_parameters by layer_types"
        )
    if fields.get("use_rope") is False:
        raise UnsupportedRotationError("use_rope=False: the model has no rotary embedding")


def _head_dim(fields: Mapping[str, Any]) -> int:
    if fields.get("head_dim"):
        return _whole(fields, "head_dim")
    hidden = fields.get("hidden_size") or fields.get("n_embd")
    heads = fields.get("num_attention_heads") or fields.get("n_head")
    if not hidden or not heads:
        raise UnsupportedRotationError("the config has neither head_dim nor hidden_size and num_attention_heads")
    return int(hidden) // int(heads)


def _rotary_size(fields: Mapping[str, Any], parameters: Mapping[str, Any], family: RopeFamily, head_dim: int) -> int:
    for share in (
        parameters.get("partial_rotary_factor"),
        fields.get("partial_rotary_factor"),
        fields.get("rotary_pct"),
    ):
        if share is not None:
            return int(head_dim * share)
    if "rotary_dim" in fields:
        return _whole(fields, "rotary_dim")
    return int(head_dim * family.default_partial)


def _is_interleaved(fields: Mapping[str, Any], family: RopeFamily, interleaved: bool | None) -> bool:
    if interleaved is not None:
        return interleaved
    said = fields.get("rope_interleave")
    return family.interleaved if said is None else bool(said)


def _whole(fields: Mapping[str, Any], field: str) -> int:
    value = fields.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnsupportedRotationError(f"{field}={value!r} must be a positive number of components")
    return value


@dataclass(frozen=True, slots=True)
class RopeFamily:
    """How one architecture rotates where its config is silent."""

    interleaved: bool = False
    """True: neighbours (2i, 2i + 1) form a pair. False: (i, i + half) do."""
    default_theta: float = 10_000.0
    default_partial: float = 1.0
    """Share of the head that rotates."""
    scaled: bool = False
    """Frequencies are scaled where the config is silent: it must say how."""
    latent: bool = False
    """MLA: the cache holds one latent and one rotated part per token, shared by all heads."""


HALF_SPLIT = RopeFamily()
INTERLEAVED = RopeFamily(interleaved=True)

FAMILIES: dict[str, RopeFamily] = {
    **dict.fromkeys(
        (
            "llama",
            "mistral",
            "ministral",
            "qwen2",
            "qwen2_moe",
            "qwen3",
            "qwen3_moe",
            "qwen2_vl_text",
            "qwen2_5_vl_text",
            "qwen3_vl_text",
            "qwen3_vl_moe_text",
            "gemma",
            "gemma2",
            "gemma3_text",
            "phi3",
            "starcoder2",
            "olmo",
            "olmo2",
            "olmoe",
            "granite",
            "granitemoe",
            "falcon",
            "arcee",
            "seed_oss",
            "dots1",
        ),
        HALF_SPLIT,
    ),
    "mixtral": RopeFamily(default_theta=1_000_000.0),
    "phimoe": RopeFamily(default_theta=1_000_000.0),
    "minimax_m2": RopeFamily(default_theta=5_000_000.0),
    "apertus": RopeFamily(default_theta=12_000_000.0, scaled=True),
    "bitnet": RopeFamily(default_theta=500_000.0),
    "flex_olmo": RopeFamily(default_theta=500_000.0),
    "gpt_oss": RopeFamily(default_theta=150_000.0, scaled=True),
    "phi": RopeFamily(default_partial=0.5),
    "persimmon": RopeFamily(default_partial=0.5),
    "nemotron": RopeFamily(default_partial=0.5),
    "glm4_moe": RopeFamily(default_partial=0.5),
    "stablelm": RopeFamily(default_partial=0.25),
    "gpt_neox": RopeFamily(default_partial=0.25),
    "gptj": INTERLEAVED,
    "codegen": INTERLEAVED,
    "glm": RopeFamily(interleaved=True, default_partial=0.5),
    "glm4": RopeFamily(interleaved=True, default_partial=0.5),
    "cohere": RopeFamily(interleaved=True, default_theta=500_000.0),
    "ernie4_5": RopeFamily(interleaved=True, default_theta=500_000.0),
    "ernie4_5_moe": RopeFamily(interleaved=True, default_theta=500_000.0),
    "helium": RopeFamily(interleaved=True, default_theta=100_000.0),
    "deepseek_v2": RopeFamily(interleaved=True, latent=True),
    "deepseek_v3": RopeFamily(interleaved=True, latent=True),
    "kimi_k2": RopeFamily(interleaved=True, latent=True),
    "glm4_moe_lite": RopeFamily(interleaved=True, latent=True),
}
