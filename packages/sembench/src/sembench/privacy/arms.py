"""Ways to serve the request of somebody who knows the document only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sembench.embedded.config import QualityTier
from sembench.schema import InputError

Salts = Literal["none", "one", "separate"]
Donors = Literal["as_sent", "alone"]
_ATTENTION = "seam_head+query_attention"


@dataclass(frozen=True, kw_only=True)
class PrivacyArm:
    name: str
    salts: Salts
    """Of the donor's client and of who asks: none, one and the same, or one each."""
    sharing: Literal["salted", "all"] = "salted"
    """SEMBLEND_SHARING. A server has its own, which it was started with."""
    donors: Donors = "as_sent"
    """alone: the document was served by itself, with nothing in front of it."""
    reuse: bool = True
    tier: QualityTier = "balanced"
    policy: str | None = None
    budget: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


_ON_ANY_ENGINE = (
    PrivacyArm(name="reuse_off", salts="one", reuse=False),
    PrivacyArm(name="no_salts", salts="none"),
    PrivacyArm(name="separate_salts", salts="separate"),
    PrivacyArm(name="one_salt", salts="one"),
    PrivacyArm(name="one_salt_alone", salts="one", donors="alone"),
)
_EMBEDDED_ONLY = (
    PrivacyArm(name="all_fast", salts="none", sharing="all", tier="fast"),
    PrivacyArm(name="all_balanced", salts="none", sharing="all"),
    PrivacyArm(name="all_strict", salts="none", sharing="all", tier="strict"),
    PrivacyArm(name="all_rotate_only", salts="none", sharing="all", policy="rotate_only"),
    PrivacyArm(name="all_attention_15", salts="none", sharing="all", policy=_ATTENTION, budget=0.15),
    PrivacyArm(name="all_attention_30", salts="none", sharing="all", policy=_ATTENTION, budget=0.30),
    PrivacyArm(name="all_attention_50", salts="none", sharing="all", policy=_ATTENTION, budget=0.50),
    PrivacyArm(name="all_deviation_50", salts="none", sharing="all", policy="kv_deviation", budget=0.50),
    PrivacyArm(name="all_mean_shift", salts="none", sharing="all", policy=f"{_ATTENTION}+mean_shift", budget=0.15),
)
EMBEDDED_ARMS = {arm.name: arm for arm in (*_ON_ANY_ENGINE, *_EMBEDDED_ONLY)}
LIVE_ARMS = {arm.name: arm for arm in _ON_ANY_ENGINE}
"""A server's tier and sharing are what it was started with."""


def choose_arms(wanted: Iterable[str], known: dict[str, PrivacyArm]) -> list[PrivacyArm]:
    """By name, in the order of the table; all of them where none is named."""
    names = set(wanted)
    strange = sorted(names - set(known))
    if strange:
        raise InputError(f"--arms: {', '.join(strange)}: the arms here are {', '.join(known)}")
    return [arm for name, arm in known.items() if name in names or not names]
