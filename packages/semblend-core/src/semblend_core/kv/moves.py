"""Which token's KV goes from which slot to which, and how far: built on the host, sent to the device once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core.contract.plan import Span
from semblend_core.kv.donor_kv import DonorKv, InvalidKvError
from semblend_core.kv.rotation import Rotation

Indices = npt.NDArray[np.int64]
_SLOTS_LIMIT = 2**31
"""Slots travel as int32; addresses are made of them in int64."""
_TORCH_TYPES = {
    np.uint8: torch.uint8,
    np.int32: torch.int32,
    np.int64: torch.int64,
    np.float32: torch.float32,
    np.float64: torch.float64,
}
_ALIGNMENT = 16
"""Parts of an upload begin at multiples of this many bytes, so that the kernel may read 16 bytes at once."""


@dataclass(frozen=True, slots=True, eq=False)
class SlotTable:
    """Where the tokens of one sequence lie in a pool: its block table. Holds the array, does not copy it."""

    blocks: npt.NDArray[np.integer]
    """Block numbers in the order of the sequence."""
    block_size: int
    first_position: int = 0
    """Position of the first token of the first block."""

    def __post_init__(self) -> None:
        if self.blocks.ndim != 1 or self.block_size < 1:
            raise InvalidKvError(f"a block table is a row of blocks, got {self.blocks.shape} of {self.block_size}")

    @classmethod
    def of_slots(cls, slots: npt.NDArray[np.integer], first_position: int = 0) -> SlotTable:
        """One slot per token, as SGLang hands them out."""
        return cls(slots, 1, first_position)

    @classmethod
    def of_donor(cls, donor: DonorKv) -> SlotTable:
        """The table that goes with :meth:`PagedKv.from_donor`."""
        return cls(np.zeros(1, np.int64), donor.tokens, donor.first_position)

    @property
    def end_position(self) -> int:
        """One past the last position the table reaches."""
        return self.first_position + self.blocks.size * self.block_size

    def slots_of(self, positions: Indices) -> Indices:
        """The slots of tokens at ``positions``, which the table must reach."""
        return _slots(self.blocks, self.block_size, positions - self.first_position)


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Tokens to move, many spans at once. One entry per token in the first three arrays."""

    source_slots: Indices
    target_slots: Indices
    """No slot twice, which a relocation checks: the order of writes is not defined."""
    shift_rows: Indices
    """Index into ``shifts``."""
    shifts: Indices
    """The distinct shifts, in tokens; positive is towards the end."""

    def __post_init__(self) -> None:
        tokens = self.source_slots.shape
        if len(tokens) != 1 or self.target_slots.shape != tokens or self.shift_rows.shape != tokens:
            raise InvalidKvError(
                f"moves need equally many source slots, target slots and shifts, got {self.source_slots.shape}, "
                f"{self.target_slots.shape} and {self.shift_rows.shape}"
            )
        if not self.tokens:
            return
        for what, slots in (("source", self.source_slots), ("target", self.target_slots)):
            if slots.min() < 0 or slots.max() >= _SLOTS_LIMIT:
                raise InvalidKvError(f"{what} slots reach from {slots.min()} to {slots.max()}, outside 0 to 2**31")
        if self.shift_rows.min() < 0 or self.shift_rows.max() >= self.shifts.size:
            raise InvalidKvError(f"shift rows reach {self.shift_rows.max()}, there are {self.shifts.size} shifts")

    @classmethod
    def build(cls, spans: Iterable[Span], *, sources: Mapping[str, SlotTable], target: SlotTable) -> Moves:
        """The moves of ``spans``, whose donors all lie in one pool with the block tables ``sources`` (by donor id)."""
        ordered = list(spans)
        lengths = np.array([span.length for span in ordered], np.int64)
        steps = np.arange(lengths.sum()) - np.repeat(begins_of(lengths), lengths)
        targets = np.array([span.target_start for span in ordered], np.int64)
        shifts, rows = np.unique(np.array([span.shift for span in ordered], np.int64), return_inverse=True)
        for span in ordered:
            check_reach(f"target of {span}", span.target_start, span.target_end, target)
        return cls(
            _source_slots(ordered, sources, lengths, steps),
            _slots(target.blocks, target.block_size, np.repeat(targets - target.first_position, lengths) + steps),
            np.repeat(rows, lengths),
            shifts,
        )

    @property
    def tokens(self) -> int:
        return self.source_slots.size

    def repeats_targets(self) -> bool:
        """Whether a slot is written twice. Like ``shares_slots``, only for slots that a pool has: see ``_marked``."""
        return bool(self.tokens) and np.count_nonzero(_marked(self.target_slots)) != self.tokens

    def shares_slots(self) -> bool:
        """Whether a slot is both read and written."""
        if not self.tokens:
            return False
        top = int(max(self.source_slots.max(), self.target_slots.max()))
        return bool(_marked(self.source_slots, top)[self.target_slots].any())


def begins_of(lengths: npt.NDArray[np.integer]) -> Indices:
    """Where each begins, laid end to end."""
    return np.cumsum(lengths, dtype=np.int64) - lengths


def upload(parts: Sequence[npt.NDArray[Any]], device: torch.device) -> list[Tensor]:
    """``parts`` on the device, in one transfer from pinned memory, which neither waits nor is waited for.

    It is ordered on the device's current stream, and torch leaves the pinned memory alone until it is done.
    """
    starts = list(accumulate((-(-part.nbytes // _ALIGNMENT) * _ALIGNMENT for part in parts), initial=0))
    packed = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    memory = packed.numpy()
    for start, part in zip(starts, parts, strict=False):
        memory[start : start + part.nbytes] = part.reshape(-1).view(np.uint8)
    there = packed.to(device, non_blocking=True)
    return [
        there[start : start + part.nbytes].view(_TORCH_TYPES[part.dtype.type]).view(part.shape)
        for start, part in zip(starts, parts, strict=False)
    ]


def _marked(slots: Indices, top: int | None = None) -> npt.NDArray[np.bool_]:
    # A byte per slot up to the highest: ten times as fast as sorting, and a pool of a million slots is a megabyte.
    flags = np.zeros(int(slots.max() if top is None else top) + 1, np.bool_)
    flags[slots] = True
    return flags


def _slots(blocks: npt.NDArray[np.integer], block_size: int, places: Indices) -> Indices:
    block, offset = np.divmod(places, block_size)
    return blocks[block].astype(np.int64) * block_size + offset


def _source_slots(spans: list[Span], sources: Mapping[str, SlotTable], lengths: Indices, steps: Indices) -> Indices:
    used: dict[str, int] = {}  # Where each donor's places begin in the tables laid end to end.
    tables: list[SlotTable] = []
    begins = np.empty(len(spans), np.int64)
    places = 0
    for index, span in enumerate(spans):
        table = sources.get(span.donor_id)
        if table is None:
            raise InvalidKvError(f"no block table for donor {span.donor_id!r} of {span}")
        check_reach(f"donor of {span}", span.donor_start, span.donor_end, table)
        if span.donor_id not in used:
            if tables and table.block_size != tables[0].block_size:
                raise InvalidKvError("donors of one pool have one block size, got several")
            used[span.donor_id] = places
            tables.append(table)
            places += table.blocks.size * table.block_size
        begins[index] = used[span.donor_id] + span.donor_start - table.first_position
    if not tables:
        return np.empty(0, np.int64)
    blocks = np.concatenate([table.blocks for table in tables])
    return _slots(blocks, tables[0].block_size, np.repeat(begins, lengths) + steps)


class _Reaching(Protocol):
    @property
    def first_position(self) -> int: ...

    @property
    def end_position(self) -> int: ...


def check_reach(what: str, start: int, end: int, table: _Reaching) -> None:
    """Raise :class:`InvalidKvError` where the table does not have all positions from ``start`` to ``end``."""
    if start < table.first_position or end > table.end_position:
        raise InvalidKvError(
            f"{what} is outside the positions {table.first_position} to {table.end_position} of its block table"
        )


_FEWEST = 4096
"""Positions a table begins with; it doubles from there."""


class Angles:
    """Float32 tables [positions, size / 2], with the numbers of ``Rotation.cos_sin``. Safe from several threads.

    They are made on the device, in float64: 32,768 positions would take the host some 60 ms.
    """

    def __init__(self, rotation: Rotation, device: torch.device) -> None:
        self._rotation, self._device = rotation, device
        self._lock = Lock()
        self._made: list[tuple[Tensor, Tensor, Any]] = []
        """The last is the longest. Those before are kept: kernels on any stream may still read them."""

    def upto(self, positions: int) -> tuple[Tensor, Tensor]:
        """Tables with at least so many positions, in order on the device's current stream."""
        with self._lock:
            if not self._made or self._made[-1][0].shape[0] < positions:
                self._made.append(self._make(max(_FEWEST, 1 << (positions - 1).bit_length())))
            cos, sin, ready = self._made[-1]
        if ready is not None:
            torch.cuda.current_stream(self._device).wait_event(ready)
        return cos, sin

    def _make(self, positions: int) -> tuple[Tensor, Tensor, Any]:
        (frequencies,) = upload([self._rotation.frequencies], self._device)
        angles = torch.arange(positions, dtype=torch.float64, device=self._device)[:, None] * frequencies
        tables = angles.cos().float(), angles.sin().float()
        on_gpu = self._device.type == "cuda"
        return *tables, torch.cuda.current_stream(self._device).record_event() if on_gpu else None


@lru_cache(maxsize=8)
def _angles(rotation: Rotation, device: torch.device) -> Angles:
    return Angles(rotation, device)


def resident_angles(rotation: Rotation, device: torch.device, positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin of 0 to at least ``positions`` tokens, made at the first call and whenever they must grow."""
    return _angles(rotation, device).upto(positions)
