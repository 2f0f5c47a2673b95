"""How much two cold servings of one prompt differ: no difference below that is an effect of reuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sembench.schema import Quality, Rate, RunIdentity
from sembench.scoring import rouge_l
from sembench.statistics import mean, percentile

NOISE_FLOOR_SCHEMA = "sembench.noise-floor.v1"

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Spread(_Model):
    """The distribution of one figure over ``n`` pairs; all None where there is no pair."""

    n: Count
    mean: float | None = None
    p5: float | None = None
    p50: float | None = None
    p95: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        p5, p50, p95 = (percentile(values, percent) for percent in (5.0, 50.0, 95.0))
        return cls(n=len(values), mean=mean(values), p5=p5, p50=p50, p95=p95)


class NoisePair(_Model):
    """The same prompt, served cold twice."""

    item_id: str
    rouge_l: Share
    """ROUGE-L of the two answers, one against the other."""
    exact_match: bool
    """The two answers are the same text."""
    ttft_ratio: float | None
    """The first serving's TTFT by the second's; None where one of them was not measured."""
    answer_score_difference: float | None
    """The first serving's best answer score minus the second's; None where the item has no answers."""


class NoiseFloor(_Model):
    """What ``assert-result-gates --noise-floor-calibration`` reads. Only proved-cold servings are in it."""

    schema_version: Literal["sembench.noise-floor.v1"] = "sembench.noise-floor.v1"
    run: RunIdentity
    config: dict[str, Any]
    items: Count
    """Items of the manifest that were to be served."""
    repeats: Annotated[int, Field(ge=2)]
    rouge_l: Spread
    exact_match: Rate
    """Pairs whose answers are the same text, of all pairs."""
    ttft_ratio: Spread
    answer_score_difference: Spread
    dropped: dict[str, Count] = {}
    """Servings that did not count, by reason."""
    pairs: list[NoisePair] = []


@dataclass(frozen=True)
class ColdServing:
    """One prompt served with nothing to reuse. ``problem`` says why it must not count."""

    text: str
    ttft_ms: float | None
    quality: Quality
    problem: str | None = None


def build_noise_floor(
    run: RunIdentity,
    config: dict[str, Any],
    servings: Mapping[str, Sequence[ColdServing]],
    repeats: int,
) -> NoiseFloor:
    """``servings`` are all that were tried, by item. Every two good ones of an item make a pair."""
    pairs: list[NoisePair] = []
    dropped: Counter[str] = Counter()
    for item_id, tried in servings.items():
        dropped.update(serving.problem for serving in tried if serving.problem)
        good = [serving for serving in tried if not serving.problem]
        pairs += [_compare(item_id, first, second) for first, second in combinations(good, 2)]
    return NoiseFloor(
        run=run,
        config=config,
        items=len(servings),
        repeats=repeats,
        rouge_l=Spread.of([pair.rouge_l for pair in pairs]),
        exact_match=Rate.of(sum(pair.exact_match for pair in pairs), len(pairs)),
        ttft_ratio=Spread.of([pair.ttft_ratio for pair in pairs if pair.ttft_ratio is not None]),
        answer_score_difference=Spread.of(
            [pair.answer_score_difference for pair in pairs if pair.answer_score_difference is not None]
        ),
        dropped=dict(dropped),
        pairs=pairs,
    )


def _compare(item_id: str, first: ColdServing, second: ColdServing) -> NoisePair:
    scores = [answer_score(serving.quality) for serving in (first, second)]
    known = scores[0] is not None and scores[1] is not None
    return NoisePair(
        item_id=item_id,
        rouge_l=rouge_l(first.text, [second.text]),
        exact_match=first.text == second.text,
        ttft_ratio=first.ttft_ms / second.ttft_ms if first.ttft_ms and second.ttft_ms else None,
        answer_score_difference=scores[0] - scores[1] if known else None,  # type: ignore[operator]
    )


def answer_score(quality: Quality) -> float | None:
    """The figure that decides whether an answer passes: the best of F1, ROUGE-L and token recall."""
    known = [score for score in (quality.f1, quality.rouge_l, quality.token_recall) if score is not None]
    return max(known, default=None)
