"""What a replay depends on besides its manifest. Goes into the result, and into the header of a partial one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Tier: TypeAlias = Literal["fast", "balanced", "strict"]
Template: TypeAlias = Literal["chat", "none"]


@dataclass(frozen=True, kw_only=True)
class EmbeddedConfig:
    model: str | None = None
    """None: SmolLM2-135M-Instruct from the package index."""
    device: str = "cpu"
    dtype: str = "float32"
    template: Template = "chat"
    """chat: a prompt is a user's message in the model's own template. none: it is the whole text."""
    tier: Tier = "balanced"
    policy: str | None = None
    """A recompute policy by name, in place of the tier's choice."""
    budget: float | None = None
    """Share of the reused tokens that may be computed afresh; None: the tier's."""
    block_size: int = 16
    """Blocks of the engine's prefix cache, and of the block metrics."""
    continuation_tokens: int = 64
    max_output_tokens: int = 48
    quality_threshold: float = 0.60
    repeats: int = 3
    exact: bool = True
    probe: bool = True
    noise_floor: bool = True
    max_items: int | None = None
    lookup_budget_ms: float = 1000.0
    """Generous, so that a busy machine changes a lookup's time and never its answer."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
