"""Inverse frequencies of the position-linear kinds of RoPE: default, linear, llama3 and YaRN.

Models hold these frequencies in float32, and one unit in their last place is worth 0.006 rad over 100,000 tokens. A
move must use the very numbers the model used, so each kind is computed in float32 and in the order of operations that
models share; only the angles made from them are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


class UnsupportedRotationError(ValueError):
    """A model whose keys cannot be moved by a rotation, or of which this is not known. Names the config field."""


REFUSED_KINDS = {
    "dynamic": "its frequencies depend on the length of the sequence, so stored keys do not fit another one",
    "longrope": "its frequencies change when a sequence outgrows the original context",
    "su": "it is longrope by its old name",
    "mrope": "its positions have three parts",
    "proportional": "the part that rotates is spread over the head",
}


def inverse_frequencies(size: int, theta: float, parameters: Mapping[str, Any], max_positions: int | None) -> Tensor:
    """Radians per token of each of the ``size / 2`` pairs, float32 on the CPU, as the model itself holds them."""
    kind = rope_kind(parameters)
    if kind in REFUSED_KINDS:
        raise UnsupportedRotationError(f"rope_type={kind!r} is not supported: {REFUSED_KINDS[kind]}")
    if kind not in _KINDS:
        raise UnsupportedRotationError(f"rope_type={kind!r} is not known; supported are {', '.join(sorted(_KINDS))}")
    return _KINDS[kind](size, theta, parameters, max_positions)


def rope_kind(parameters: Mapping[str, Any]) -> str:
    """``rope_type``, or ``type`` as configs spelled it before."""
    return str(parameters.get("rope_type") or parameters.get("type") or "default")


def _powers_of_theta(size: int, theta: float) -> Tensor:
    exponents: Tensor = torch.arange(0, size, 2, dtype=torch.int64).to(torch.float32) / size
    return theta**exponents


def _default(size: int, theta: float, parameters: Mapping[str, Any], max_positions: int | None) -> Tensor:
    return 1.0 / _powers_of_theta(size, theta)


def _linear(size: int, theta: float, parameters: Mapping[str, Any], max_positions: int | None) -> Tensor:
    return (1.0 / _powers_of_theta(size, theta)) / _number(parameters, "factor")


def _llama3(size: int, theta: float, parameters: Mapping[str, Any], max_positions: int | None) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended by wavelength."""
    factor = _number(parameters, "factor")
    low, high = _number(parameters, "low_freq_factor"), _number(parameters, "high_freq_factor")
    context = _original_context(parameters, max_positions)
    frequencies = 1.0 / _powers_of_theta(size, theta)
    wavelengths = 2 * math.pi / frequencies
    stretched = torch.where(wavelengths > context / low, frequencies / factor, frequencies)
    share = (context / wavelengths - low) / (high - low)
    blended = (1 - share) * stretched / factor + share * stretched
    between = ~(wavelengths < context / high) & ~(wavelengths > context / low)
    return torch.where(between, blended, stretched)


def _yarn(size: int, theta: float, parameters: Mapping[str, Any], max_positions: int | None) -> Tensor:
    """Components are interpolated or kept by how often they turn within the original context.

    YaRN also scales attention, by a factor on cos and sin. It is inside every stored key already and a rotation keeps
    it there, so a move needs the frequencies only.
    """
    context = _original_context(parameters, max_positions)
    factor = parameters.get("factor")
    if factor is None and max_positions is not None:
        factor = max_positions / context
    if factor is None:
        raise UnsupportedRotationError("rope_type='yarn' needs factor or max_position_embeddings; both are missing")
    fast, slow = float(parameters.get("beta_fast") or 32), float(parameters.get("beta_slow") or 1)
    first, last = (size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (fast, slow))
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    if first == last:
        last += 0.001  # A step instead of a ramp; the models' own way out of the division by zero.
    ramp = torch.clamp((torch.arange(size // 2, dtype=torch.float32) - first) / (last - first), 0, 1)
    kept = 1 - ramp
    powers = _powers_of_theta(size, theta)
    interpolated: Tensor = 1.0 / (factor * powers)
    return interpolated * (1 - kept) + 1.0 / powers * kept


def _original_context(parameters: Mapping[str, Any], max_positions: int | None) -> float:
    context = parameters.get("original_max_position_embeddings") or max_positions
    if not context:
        raise UnsupportedRotationError(
            f"rope_type={rope_kind(parameters)!r} needs original_max_position_embeddings; the config has none"
        )
    return float(context)


def _number(parameters: Mapping[str, Any], field: str) -> float:
    value = parameters.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UnsupportedRotationError(f"rope_type={rope_kind(parameters)!r} needs {field} > 0, got {value!r}")
    return value


_KINDS: dict[str, Callable[[int, float, Mapping[str, Any], int | None], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    # What engines call YaRN with DeepSeek's attention scale; the frequencies are the same.
    "deepseek_yarn": _yarn,
}
