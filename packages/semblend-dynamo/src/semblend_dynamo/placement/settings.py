"""The settings of placement."""

# ruff: noqa: RUF009 - the calls in the defaults are dataclasses.field, with its metadata

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

from semblend_core.settings import Choice, DeclaredSettings, Number, Whole, setting
from semblend_dynamo.placement.choosing import PlacementRule

PlacementMode: TypeAlias = Literal["pin", "prefer", "off"]


@dataclass(frozen=True, kw_only=True)
class PlacementSettings(DeclaredSettings):
    PREFIX: ClassVar[str] = "SEMBLEND_PLACEMENT_"
    GROUPS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "placement": (
            "Placement (semblend-dynamo)",
            "Which worker a router sends a request to. No engine reads these. See [Dynamo](dynamo.md).",
        ),
    }

    mode: PlacementMode = setting(
        "placement",
        "pin",
        Choice(get_args(PlacementMode)),
        "How a router acts on what it found: it names the worker, it prefers the worker and lets exact prefixes and "
        "load overrule that, or it decides nothing and only reports.",
    )
    credit: float = setting(
        "placement",
        0.8,
        Number(0, 1),
        "What a token that a worker could reuse is worth, as a share of one that it need not prefill at all.",
    )
    min_tokens: int = setting(
        "placement", 64, Whole(1), "Fewest reusable tokens for which a request is placed.", unit="tokens"
    )
    margin_tokens: int = setting(
        "placement",
        64,
        Whole(0),
        "Least gain over the router's own choice for which it is overruled.",
        unit="tokens",
    )
    donors: int = setting(
        "placement", 4, Whole(1, 64), "Most donors of one prompt whose place is looked up.", unit="donors"
    )
    preference: float = setting(
        "placement",
        0.3,
        Number(0, low_excluded=True),
        "With `prefer`: the weight of the preferred worker in the router's own cost.",
    )
    likeness: float = setting(
        "placement",
        0.0,
        Number(0, 1),
        "Where no donor shares tokens: what a prompt that only reads alike is worth, as a share of the prompt; 0: "
        "likeness is not asked for.",
    )
    likeness_wait_ms: float = setting(
        "placement",
        5.0,
        Number(0),
        "How long a request without spans may wait for its likeness; one with spans never waits. 0: it takes what is "
        "there already.",
        unit="ms",
    )

    def rule(self) -> PlacementRule:
        return PlacementRule(self.credit, self.min_tokens, self.margin_tokens)
