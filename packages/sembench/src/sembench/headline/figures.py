"""The figures of a part of the run: of one length, band, dataset or transform."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sembench.results.paired import CleanPair, find_clean_pairs, pair_up
from sembench.results.records import Records, confirmed_tokens
from sembench.results.roi import Roi, return_on_reuse
from sembench.schema import InputError, Interval, ManifestItem, Paired, Rate, RequestRecord, Result
from sembench.statistics import bootstrap_median, mean

FAITHFUL = 4
"""Of 5, from which on the judge holds that all of an answer follows from its prompt."""


@dataclass(frozen=True)
class Part:
    """Some items of a run, controls and all."""

    name: str
    result: Result
    served: Records

    @cached_property
    def _all_pairs(self) -> list[CleanPair]:
        return find_clean_pairs(self.served)[0]

    @cached_property
    def pairs(self) -> list[CleanPair]:
        """Clean pairs that are no negative controls."""
        return [pair for pair in self._all_pairs if not pair.cold.negative_control]

    @property
    def hits(self) -> list[CleanPair]:
        return [pair for pair in self.pairs if pair.is_hit]

    @property
    def misses(self) -> list[CleanPair]:
        """Negative controls among them."""
        return [pair for pair in self._all_pairs if pair.is_miss]

    @property
    def exact_prefix(self) -> Rate | None:
        """Pairs whose donors helped through the engine's own prefix cache alone: no hits, and no misses."""
        if all(confirmed_tokens(pair.warm) is None for pair in self.pairs):
            return None
        return Rate.of(sum(pair.is_exact for pair in self.pairs), len(self.pairs))

    @property
    def controls_reused(self) -> Rate | None:
        """Negative controls for which donor KV landed. One that was not measured leaves the rate without a value."""
        all_of = [item.item_id for item in self.served.items if item.negative_control]
        told = [confirmed_tokens(self.served.find("warm", item_id)) for item_id in all_of]
        if all(tokens is None for tokens in told):
            return None
        landed = sum(1 for tokens in told if tokens)
        return Rate(value=None, numerator=landed, denominator=len(told)) if None in told else Rate.of(landed, len(told))

    @property
    def speedup_beyond_exact(self) -> Interval | None:
        """Over hits and misses."""
        speedups = [pair.speedup for pair in self.pairs if pair.is_hit or pair.is_miss]
        return bootstrap_median(speedups) if speedups else None

    @cached_property
    def paired(self) -> Paired:
        """Several columns of every table read it, and its intervals take a while."""
        return pair_up(self.served)

    @property
    def prompt_tokens(self) -> Interval:
        return bootstrap_median([pair.cold.prompt_tokens for pair in self.pairs if pair.cold.prompt_tokens])

    def exact_ttft(self) -> Interval:
        records = [self.served.find("exact", pair.cold.item_id) for pair in self.pairs]
        return bootstrap_median([each.ttft_ms for each in records if each and each.ttft_ms is not None])

    @property
    def reused_tokens(self) -> Rate | None:
        told = [pair.warm for pair in self.pairs if confirmed_tokens(pair.warm) is not None and pair.warm.prompt_tokens]
        if not told:
            return None
        return Rate.of(sum(each.confirmed_tokens or 0 for each in told), sum(each.prompt_tokens or 0 for each in told))

    def return_on_reuse(self) -> Roi | str:
        """Or why it cannot be told."""
        try:
            return return_on_reuse(self.result.model_copy(update={"requests": list(self.served)}))
        except InputError as error:
            return str(error).removeprefix("--result: ")

    def judged(self, arm: str) -> list[int]:
        scores = [(record.quality.judge or {}).get("faithfulness") for record in self._records_of(arm)]
        return [score for score in scores if score is not None]

    def score(self, arm: str, name: str) -> tuple[float | None, int]:
        """The mean of one score, and of how many answers."""
        records = self._records_of(arm)
        known = [float(value) for record in records if (value := getattr(record.quality, name)) is not None]
        return mean(known), len(known)

    def _records_of(self, arm: str) -> list[RequestRecord]:
        return [(pair.cold if arm == "cold" else pair.warm) for pair in self.pairs]


def ttft(pairs: Sequence[CleanPair], arm: str) -> Interval:
    return bootstrap_median([pair.cold_ttft_ms if arm == "cold" else pair.warm_ttft_ms for pair in pairs])


def whole_run(result: Result, items: Sequence[ManifestItem]) -> Part:
    return Part("all", result, Records(items, result.requests, result.aggregate.block_size or 16))


def split(
    part: Part, key: Callable[[ManifestItem], Hashable], name: Callable[[Any], str] = str, order: Sequence[Any] = ()
) -> list[Part]:
    """By what ``key`` says of an item; in the order in which the manifest first has it, unless one is given."""
    keys = {item.item_id: key(item) for item in part.served.items}
    present = dict.fromkeys(keys.values())
    return [
        Part(name(wanted), part.result, part.served.only(lambda item, wanted=wanted: keys[item.item_id] == wanted))  # type: ignore[misc]
        for wanted in (each for each in (order or present) if each in present)
    ]


def band_of(item: ManifestItem) -> int:
    return int(item.metadata.get("length_band", 0))
