"""A result, judged: an opinion for each answer, and their sums. No other figure is touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from sembench.exit_codes import REFUSED_OUTSIDE
from sembench.judge.client import JudgeClient, JudgeFailedError
from sembench.judge.opinions import KeptOpinions, Opinion
from sembench.judge.questions import Message, Vote, ask_for_faithfulness, ask_for_preference, read_score, read_vote
from sembench.schema import InputError, ManifestItem, RequestRecord, Result
from sembench.statistics import mean

PAIRWISE = ("warm", "cold", "tie", "inconsistent", "identical")
"""inconsistent: the two orders of the answers gave two verdicts, so the judge went by position."""
UNANSWERED_IN_A_ROW = 10
"""So many items, and the judge is gone rather than some questions bad."""


def judge_result(
    result: Result,
    items: Sequence[ManifestItem],
    client: JudgeClient,
    kept: KeptOpinions,
    *,
    concurrency: int = 4,
    max_prompt_chars: int | None = None,
    on_item: Callable[[], None] = lambda: None,
) -> Result:
    """The same result with ``quality.judge`` on its cold and warm records and ``aggregate.judge``.

    InputError (exit code 3) where the judge stops answering; what it said is in ``kept``.
    """
    cold, warm = _outputs(result, "cold"), _outputs(result, "warm")

    def ask(item: ManifestItem) -> Opinion:
        return _Questions(client, max_prompt_chars).ask(item, cold.get(item.item_id), warm.get(item.item_id))

    wanted = [item for item in items if item.item_id in cold or item.item_id in warm]
    opinions = {item.item_id: kept.known[item.item_id] for item in wanted if item.item_id in kept.known}
    for _ in opinions:
        on_item()
    left = [item for item in wanted if item.item_id not in opinions]
    for item_id, opinion in _ask_all(left, ask, concurrency, kept):
        opinions[item_id] = opinion
        on_item()
    in_order = {item.item_id: opinions[item.item_id] for item in wanted}
    records = [_with_opinion(record, opinions.get(record.item_id), client.model) for record in result.requests]
    aggregate = result.aggregate.model_copy(update={"judge": _totals(in_order, client, warm)})
    return result.model_copy(update={"requests": records, "aggregate": aggregate})


def _ask_all(
    items: Sequence[ManifestItem], ask: Callable[[ManifestItem], Opinion], concurrency: int, kept: KeptOpinions
) -> Iterator[tuple[str, Opinion]]:
    """Each opinion as it comes, and kept by then."""
    unanswered = 0
    with ThreadPoolExecutor(max_workers=concurrency) as workers:
        asked = {workers.submit(ask, item): item.item_id for item in items}
        try:
            for done in as_completed(asked):
                opinion = done.result()
                kept.keep(asked[done], opinion)
                unanswered = unanswered + 1 if opinion.is_unanswered else 0
                if unanswered == UNANSWERED_IN_A_ROW:
                    raise InputError(
                        f"the judge answered nothing about {unanswered} items in a row: {opinion.failures[0]}\n"
                        f"What it said before is in {kept.path}: run again with --resume.",
                        REFUSED_OUTSIDE,
                    )
                yield asked[done], opinion
        finally:
            workers.shutdown(cancel_futures=True)


class _Questions:
    """The questions about one item."""

    def __init__(self, client: JudgeClient, max_prompt_chars: int | None) -> None:
        self._client = client
        self._max_prompt_chars = max_prompt_chars
        self._opinion = Opinion()

    def ask(self, item: ManifestItem, cold: str | None, warm: str | None) -> Opinion:
        prompt, opinion = item.recipient_prompt, self._opinion
        if self._max_prompt_chars is not None and len(prompt) > self._max_prompt_chars:
            # Evidence that is cut could make a supported answer look unsupported.
            opinion.too_long = True
            return opinion
        if warm is not None:
            opinion.warm = self._score(prompt, warm)
        if cold is not None:
            opinion.cold = opinion.warm if cold == warm else self._score(prompt, cold)
        if cold is not None and warm is not None:
            opinion.pairwise = "identical" if cold == warm else self._compare(prompt, cold, warm)
        return opinion

    def _score(self, prompt: str, answer: str) -> int | None:
        reply = self._reply(ask_for_faithfulness(prompt, answer))
        score = None if reply is None else read_score(reply)
        self._opinion.unreadable += reply is not None and score is None
        return score

    def _compare(self, prompt: str, cold: str, warm: str) -> str | None:
        """Both orders: a verdict that changes with the order is one about the order."""
        first = self._vote(ask_for_preference(prompt, cold, warm), {"A": "cold", "B": "warm", "tie": "tie"})
        second = self._vote(ask_for_preference(prompt, warm, cold), {"A": "warm", "B": "cold", "tie": "tie"})
        if first is None or second is None:
            return None
        return first if first == second else "inconsistent"

    def _vote(self, messages: Sequence[Message], meaning: Mapping[Vote, str]) -> str | None:
        reply = self._reply(messages)
        vote = None if reply is None else read_vote(reply)
        self._opinion.unreadable += reply is not None and vote is None
        return None if vote is None else meaning[vote]

    def _reply(self, messages: Sequence[Message]) -> str | None:
        self._opinion.asked += 1
        try:
            return self._client.ask(messages)
        except JudgeFailedError as error:
            self._opinion.failures.append(str(error))
            return None


def _outputs(result: Result, arm: str) -> dict[str, str]:
    return {
        record.item_id: record.output
        for record in result.requests
        if record.arm == arm and record.status == "ok" and record.output is not None
    }


def _with_opinion(record: RequestRecord, opinion: Opinion | None, model: str) -> RequestRecord:
    if opinion is None or record.arm not in ("cold", "warm") or record.status != "ok" or record.output is None:
        return record
    told: dict[str, Any] = {"model": model, "faithfulness": opinion.cold if record.arm == "cold" else opinion.warm}
    if record.arm == "warm":
        told["pairwise"] = opinion.pairwise
    return record.model_copy(update={"quality": record.quality.model_copy(update={"judge": told})})


def _totals(opinions: Mapping[str, Opinion], client: JudgeClient, warm: Mapping[str, str]) -> dict[str, Any]:
    all_of = list(opinions.values())
    both = [(opinion.cold, opinion.warm) for opinion in all_of]
    differences = [warm - cold for cold, warm in both if cold is not None and warm is not None]
    verdicts = Counter(opinion.pairwise for opinion in all_of if opinion.pairwise)
    failures = [failure for opinion in all_of for failure in opinion.failures]
    return {
        "model": client.model,
        "url": client.url,
        "items": len(all_of),
        "answers_warm": sum(item_id in warm and not opinion.too_long for item_id, opinion in opinions.items()),
        "faithfulness_cold": _mean([cold for cold, _ in both if cold is not None]),
        "faithfulness_warm": _mean([warm for _, warm in both if warm is not None]),
        "faithfulness_warm_minus_cold": _mean(differences),
        "pairwise": {**{name: verdicts[name] for name in PAIRWISE}, "n": verdicts.total()},
        "asked": sum(opinion.asked for opinion in all_of),
        "unreadable_replies": sum(opinion.unreadable for opinion in all_of),
        "failed": len(failures),
        "failure_samples": failures[:3],
        "prompts_too_long": sum(opinion.too_long for opinion in all_of),
    }


def _mean(values: Sequence[int]) -> dict[str, float | int | None]:
    return {"mean": mean(values), "n": len(values)}
