"""What a replay depends on besides its manifest: its options, the policy they name, and the extra that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from sembench.schema import InputError
from semblend_core import MissingExtraError, Plan, require_extra
from semblend_core.recompute import (
    Corrected,
    FullRecompute,
    KVDeviation,
    QueryAttention,
    Random,
    RecomputePolicy,
    RotateOnly,
    SeamAndTail,
    SeamHead,
    SharedSink,
    TierChoice,
    choose_policy,
)

QualityTier: TypeAlias = Literal["fast", "balanced", "strict"]
EmbeddedTemplate: TypeAlias = Literal["chat", "none"]
_INSTALL = (
    'this command runs a model and needs torch: pip install "sembench[embedded]"\n'
    "Without a GPU, pin torch to a build for the CPU in the same command, which is far smaller:\n"
    '  pip install "sembench[embedded]" "torch==2.13.0"'
)
_NEEDED = ("torch", "transformers", "tokenizers", "gguf", "accelerate")
_SEAM = 16
_POLICIES: dict[str, Callable[[], RecomputePolicy]] = {
    "rotate_only": RotateOnly,
    "seam_head": SeamHead,
    "seam_and_tail": SeamAndTail,
    "shared_sink": SharedSink,
    "query_attention": QueryAttention,
    "seam_head+query_attention": lambda: QueryAttention(seam=_SEAM),
    "seam_head+mean_shift": lambda: Corrected(SeamHead()),
    "seam_head+query_attention+mean_shift": lambda: Corrected(QueryAttention(seam=_SEAM)),
    "kv_deviation": KVDeviation,
    "random": Random,
    "full_recompute": FullRecompute,
}
POLICY_NAMES = tuple(_POLICIES)
POLICY_BUDGET = 0.15
"""For a policy by name, where no budget is given: what the tiers spend at most."""
Chooser = Callable[[Plan], TierChoice | None]


@dataclass(frozen=True, kw_only=True)
class EmbeddedConfig:
    model: str | None = None
    """None: SmolLM2-135M-Instruct from the package index."""
    device: str = "cpu"
    dtype: str = "float32"
    template: EmbeddedTemplate = "chat"
    """chat: a prompt is a user's message in the model's own template. none: it is the whole text."""
    tier: QualityTier = "balanced"
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


def require_embedded_extra() -> None:
    """Say what to install, before anything else is done."""
    for module in _NEEDED:
        try:
            require_extra(module, distribution="sembench", extra="embedded")
        except MissingExtraError as missing:
            raise InputError(f"{missing.name} is not installed: {_INSTALL}") from None


def make_chooser(config: EmbeddedConfig) -> Chooser:
    """What to do with a plan; None for a plan that the tier declines."""
    if config.policy is None:
        return lambda plan: _with_budget(choose_policy(config.tier, plan), config.budget)
    if config.policy not in _POLICIES:
        raise InputError(f"--policy: {config.policy!r} is none of {', '.join(POLICY_NAMES)}")
    choice = TierChoice(_POLICIES[config.policy](), POLICY_BUDGET if config.budget is None else config.budget)
    return lambda plan: choice


def _with_budget(choice: TierChoice | None, budget: float | None) -> TierChoice | None:
    return choice if choice is None or budget is None else TierChoice(choice.policy, budget)
