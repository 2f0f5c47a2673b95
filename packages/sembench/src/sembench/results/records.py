"""The records of a run, by arm and item, beside the items that they should be of."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast, get_args

from sembench.schema import InputError, ManifestItem, RequestRecord, Result
from sembench.schema.result import Arm
from sembench.scoring import rouge_l

_MAIN_ARMS: tuple[Arm, ...] = ("warm", "offline", "exact", "cold")
"""What a run's figures are of: the first of these that it has."""


def confirmed_tokens(record: RequestRecord | None) -> int | None:
    """What the backend confirmed for a request that succeeded; None where that is not known."""
    return record.confirmed_tokens if record is not None and record.status == "ok" else None


def confirmed_blocks(record: RequestRecord) -> int | None:
    return record.confirmed_blocks if record.status == "ok" else None


class Records:
    """All records of some items. Iterates over the records in the order in which they came."""

    def __init__(self, items: Sequence[ManifestItem], records: Sequence[RequestRecord], block_size: int) -> None:
        if block_size < 1:
            raise InputError(f"--block-size must be at least 1, got {block_size}")
        self.items = items
        self.block_size = block_size
        cold = _indexed(items, records)["cold"]
        self._records = [_completed(record, cold.get(record.item_id), block_size) for record in records]
        self._by_arm = _indexed(items, self._records)
        self.main_arm: Arm | None = next((arm for arm in _MAIN_ARMS if self._by_arm[arm]), None)
        self.has_pairs = bool(self._by_arm["cold"]) and bool(self._by_arm["warm"])
        """Whether the run has both arms of a pair at all."""

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(self._records)

    def of(self, arm: Arm | None) -> list[RequestRecord]:
        return list(self._by_arm[arm].values()) if arm is not None else []

    def find(self, arm: Arm | None, item_id: str) -> RequestRecord | None:
        return self._by_arm[arm].get(item_id) if arm is not None else None

    def only(self, wanted: Callable[[ManifestItem], bool]) -> Records:
        """The same run, of some of its items. It keeps its main arm, and whether it has pairs."""
        part = copy.copy(self)
        part.items = [item for item in self.items if wanted(item)]
        ids = {item.item_id for item in part.items}
        part._records = [record for record in self._records if record.item_id in ids]
        part._by_arm = _indexed(part.items, part._records)
        return part

    def by_transform(self) -> Iterator[tuple[str, Records]]:
        """Parts of the run, in the order in which the manifest first names their transforms."""
        for name in dict.fromkeys(item.transform for item in self.items):
            yield name, self.only(lambda item, wanted=name: item.transform == wanted)  # type: ignore[misc]

    def total_blocks(self, item_id: str) -> int | None:
        """Full blocks of the item's prompt; its length is the same in every arm, so any of them may tell it."""
        for arm in (self.main_arm, *_MAIN_ARMS):
            record = self.find(arm, item_id)
            if record is not None and record.total_blocks is not None:
                return record.total_blocks
        return None


def records_in(result: Result, records: Sequence[RequestRecord] | None = None) -> Records:
    """A result's own records, or what became of them, beside its items as far as they tell of them."""
    items = {
        record.item_id: ManifestItem.model_construct(
            item_id=record.item_id, transform=record.transform, negative_control=record.negative_control, answers=()
        )
        for record in result.requests
    }
    told = result.requests if records is None else records
    return Records(list(items.values()), told, result.aggregate.block_size or 16)


def is_cold(record: RequestRecord) -> bool:
    """Whether a record of the cold arm may stand for a cold prefill."""
    return record.status == "ok" and record.proved_cold is True and not record.confirmed_tokens


def _completed(record: RequestRecord, cold: RequestRecord | None, block_size: int) -> RequestRecord:
    """The record with what follows from it and from the cold arm; what it already says is kept."""
    changes: dict[str, Any] = {}
    if record.total_blocks is None and record.prompt_tokens is not None:
        changes["total_blocks"] = record.prompt_tokens // block_size
    if record.confirmed_blocks is None and record.confirmed_tokens is not None:
        changes["confirmed_blocks"] = record.confirmed_tokens // block_size
    compared = record.arm == "warm" and record.quality.cold_rouge_l is None
    if compared and record.output is not None and cold is not None and is_cold(cold) and cold.output is not None:
        rouge = rouge_l(record.output, [cold.output])
        changes["quality"] = record.quality.model_copy(update={"cold_rouge_l": rouge})
    return record.model_copy(update=changes) if changes else record


def _indexed(items: Sequence[ManifestItem], records: Sequence[RequestRecord]) -> dict[Arm, dict[str, RequestRecord]]:
    known = {item.item_id for item in items}
    by_arm: dict[Arm, dict[str, RequestRecord]] = {cast(Arm, arm): {} for arm in get_args(Arm)}
    for record in records:
        if record.item_id not in known:
            raise InputError(f"a record names item {record.item_id}, which the manifest does not hold")
        if record.item_id in by_arm[record.arm]:
            raise InputError(f"item {record.item_id} has two records in the arm {record.arm}")
        by_arm[record.arm][record.item_id] = record
    return by_arm
