"""Cold against cold: the same prompts served cold several times. No smaller difference is an effect of reuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from sembench.exit_codes import REFUSED_OUTSIDE
from sembench.identity import identify, now
from sembench.live.arms import ItemReplay
from sembench.live.config import LiveConfig, open_client
from sembench.live.isolation import Isolation
from sembench.live.replay import FAILURES_IN_A_ROW, check_servers, open_servers, warm_up_servers
from sembench.schema import (
    InputError,
    ManifestItem,
    NoiseFloor,
    NoisePair,
    Quality,
    Rate,
    RequestRecord,
    RunIdentity,
    Spread,
)
from sembench.scoring import rouge_l
from sembench.statistics import mean, percentile


@dataclass(frozen=True)
class ColdServing:
    """One prompt served with nothing to reuse. ``problem`` says why it must not count."""

    text: str
    ttft_ms: float | None
    quality: Quality
    problem: str | None = None


async def calibrate(
    config: LiveConfig,
    manifest: Path,
    items: Sequence[ManifestItem],
    repeats: int,
    on_record: Callable[[RequestRecord], None],
    api_key: str | None,
) -> NoiseFloor:
    """An item's servings follow each other, as its arms do in a replay: slow drift of the server stays out of both."""
    servings: dict[str, list[ColdServing]] = {item.item_id: [] for item in items}
    async with open_client(api_key, 1) as client:
        servers = open_servers(config, client)
        found = await check_servers(config, servers)
        isolation = Isolation(client, found.able, concurrency=1, tenant=config.tenant)
        server = {**found.engine, "cached_tokens": found.able.cached_tokens, "isolation": isolation.how}
        run = identify("noise-floor", manifest, len(items), seed=config.seed, engine=server, device="remote")
        await warm_up_servers(config, servers, items)
        failed_in_a_row = 0
        for item in items:
            for _ in range(repeats):
                record = await ItemReplay(item, config, servers, isolation, found.able).serve("cold")
                on_record(record)
                servings[item.item_id].append(_serving(record))
                failed_in_a_row = failed_in_a_row + 1 if record.status == "error" else 0
                if failed_in_a_row == FAILURES_IN_A_ROW:
                    raise InputError(
                        f"{failed_in_a_row} requests failed in a row, the last with: {record.error}", REFUSED_OUTSIDE
                    )
    finished = run.model_copy(update={"finished_at": now(), "serve_command": config.serve_command})
    return build_noise_floor(finished, config.model_dump(mode="json"), servings, repeats)


def _serving(record: RequestRecord) -> ColdServing:
    problem = None
    if record.status == "error":
        problem = "request failed"
    elif not record.proved_cold:
        problem = "cold was warm" if record.proved_cold is False else "coldness not provable"
    return ColdServing(record.output or "", record.ttft_ms, record.quality, problem)


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
        rouge_l=_spread([pair.rouge_l for pair in pairs]),
        exact_match=Rate.of(sum(pair.exact_match for pair in pairs), len(pairs)),
        ttft_ratio=_spread([pair.ttft_ratio for pair in pairs if pair.ttft_ratio is not None]),
        answer_score_difference=_spread(
            [pair.answer_score_difference for pair in pairs if pair.answer_score_difference is not None]
        ),
        dropped=dict(dropped),
        pairs=pairs,
    )


def _spread(values: Sequence[float]) -> Spread:
    p5, p50, p95 = (percentile(values, percent) for percent in (5.0, 50.0, 95.0))
    return Spread(n=len(values), mean=mean(values), p5=p5, p50=p50, p95=p95)


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
