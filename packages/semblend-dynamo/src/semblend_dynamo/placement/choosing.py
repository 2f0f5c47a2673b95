"""Which worker gets a request, and why: cost = load + prefill - credit, and a margin before anyone is overruled."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

W = TypeVar("W", bound=Hashable)


class Reason(StrEnum):
    """Why a request was placed, or left to the router's own rule."""

    SPANS = "spans"
    """Placed: a worker holds enough of the prompt's tokens, as a donor's."""
    LIKENESS = "likeness"
    """Placed: no spans, but a worker holds a prompt that reads alike."""
    NO_FINDING = "no_finding"
    """No donor shares enough with the prompt."""
    NOT_RESIDENT = "not_resident"
    """Donors were found, and no worker holds their KV now."""
    TOO_LITTLE = "too_little"
    """What a worker could reuse is less than the least credit."""
    WITHIN_MARGIN = "within_margin"
    """The gain over the router's own choice does not clear the margin."""
    EXACT_WINS = "exact_wins"
    """Another worker holds so long an exact prefix that going there is cheaper."""
    BUSY = "busy"
    """The donors' workers have so much to do that another is cheaper."""


@dataclass(frozen=True, slots=True)
class Candidate(Generic[W]):
    """A worker that could serve the request. All in tokens of prefill."""

    worker: W
    load_tokens: float
    """What it has to do already, as far as it delays this request."""
    prefill_tokens: float
    """What it would compute of this prompt without SemBlend: its exact prefix is taken off."""
    exact_tokens: int = 0
    """Leading tokens of the prompt that its own prefix cache covers."""

    @property
    def cost(self) -> float:
        return self.load_tokens + self.prefill_tokens


@dataclass(frozen=True, slots=True)
class PlacementRule:
    credit: float = 0.8
    """What a reusable token is worth, as a share of one that need not be prefilled at all."""
    min_tokens: int = 64
    """Least credit, in tokens, for which a request is placed."""
    margin_tokens: int = 64
    """Least gain over the router's own choice."""


@dataclass(frozen=True, slots=True)
class Decision(Generic[W]):
    """``worker`` is None where the router's own rule decides."""

    worker: W | None
    reason: Reason
    credit_tokens: int = 0
    """Tokens that the chosen worker could reuse; where none was chosen, the most that any could."""
    gain_tokens: float = 0.0
    """By how much the chosen worker is cheaper than what the router itself might have chosen."""


def choose(
    candidates: Sequence[Candidate[W]],
    credits: Mapping[W, int],
    rule: PlacementRule,
    *,
    because: Reason = Reason.SPANS,
) -> Decision[W]:
    """``credits``: tokens each worker could reuse beyond its exact prefix, for the reason ``because``.

    The router's own rule is taken to prefer the lowest load + prefill. Among workers that this rule can hardly tell
    apart it may take any, so the gain is counted against the worst of them.
    """
    credits = {each.worker: credits[each.worker] for each in candidates if credits.get(each.worker)}
    if not credits:
        return Decision(None, Reason.NOT_RESIDENT)
    most = max(credits.values())
    if most < rule.min_tokens and because is Reason.SPANS:
        return Decision(None, Reason.TOO_LITTLE, most)

    def cost(each: Candidate[W]) -> float:
        return each.cost - rule.credit * credits.get(each.worker, 0)

    best = min(candidates, key=lambda each: (cost(each), -each.exact_tokens))
    if not credits.get(best.worker):
        richest = max(each.exact_tokens for each in candidates if each.worker in credits)
        reason = Reason.EXACT_WINS if best.exact_tokens > richest else Reason.BUSY
        return Decision(None, reason, most)
    cheapest = min(each.cost for each in candidates)
    own_choices = [each for each in candidates if each.cost <= cheapest + rule.margin_tokens]
    gain = max(cost(each) for each in own_choices) - cost(best)
    if gain < rule.margin_tokens and because is Reason.SPANS:
        return Decision(None, Reason.WITHIN_MARGIN, credits[best.worker], gain)
    return Decision(best.worker, because, credits[best.worker], gain)
