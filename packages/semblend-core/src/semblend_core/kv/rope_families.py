"""What a model's config leaves unsaid about its rotary embedding: which components pair up, and the defaults.

No config field says whether a model rotates (x[i], x[i + half]) or (x[2i], x[2i + 1]): the model's code does. So the
architectures are listed by ``model_type``, and one that is not listed is refused rather than guessed: a wrong pairing
gives keys of the right norm at a wrong place.
"""

from __future__ import annotations

from dataclasses import dataclass


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
            "gemma",
            "gemma2",
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
}
