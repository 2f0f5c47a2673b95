"""Spans in a block table: checked once, and described to a kernel by what it cannot derive itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core.contract.plan import Span
from semblend_core.kv.donor_kv import InvalidKvError
from semblend_core.kv.layout import PagedKv
from semblend_core.kv.moves import Indices, Moves, SlotTable, begins_of, check_reach

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceSlots:
    """A table of single slots whose numbers stay on the device: nobody waits for them, and nobody checks them."""

    slots: Tensor
    first_position: int = 0
    """Position of the first token."""

    @property
    def end_position(self) -> int:
        return self.first_position + len(self.slots)

    def on_host(self) -> SlotTable:
        """Waits for the device."""
        return SlotTable.of_slots(self.slots.cpu().numpy(), self.first_position)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where spans lie, in *places*: tokens counted from the first one of ``blocks``."""

    blocks: Int32s | Tensor
    """The part of the block table from the first span to the last, with whatever is between them.

    A tensor is on the device already.
    """
    block_size: int
    first_position: int
    """The position of place 0."""
    starts: Int32s
    """[spans] The place of each span's first token."""
    lengths: Int32s
    """[spans] In tokens."""

    @classmethod
    def find(cls, spans: Sequence[Span], table: SlotTable | DeviceSlots, pool: PagedKv) -> Places:
        """Where ``spans`` (at least one) lie in ``pool``. Costs as much as there are spans and blocks, not tokens.

        Raises :class:`InvalidKvError` where a span is outside the table, a block outside the pool, or a slot would be
        written twice. Of blocks whose numbers are on the device nothing is known.
        """
        for span in spans:
            check_reach(f"target of {span}", span.target_start, span.target_end, table)
        size = 1 if isinstance(table, DeviceSlots) else table.block_size
        starts = np.array([span.target_start for span in spans], np.int64) - table.first_position
        lengths = np.array([span.length for span in spans], np.int64)
        ends = starts + lengths
        order = np.argsort(starts)
        if (starts[order][1:] < ends[order][:-1]).any():
            raise InvalidKvError("a target slot is written twice: spans overlap")
        first, last = int(starts.min()) // size, -(-int(ends.max()) // size)
        blocks: Int32s | Tensor
        if isinstance(table, DeviceSlots):
            blocks = table.slots[first:last].to(torch.int32, copy=True)  # A copy begins where kernels like to read.
        else:
            blocks = table.blocks[first:last].astype(np.int32)
            _check_blocks(blocks[_touched(starts // size - first, -(-ends // size) - first, blocks.size)], size, pool)
        return cls(
            blocks,
            size,
            table.first_position + first * size,
            (starts - first * size).astype(np.int32),
            lengths.astype(np.int32),
        )


@dataclass(frozen=True, slots=True, eq=False)
class SpanMoves:
    """Spans as the relocation kernel takes them. The arrays without a word have one entry per span."""

    target_starts: npt.NDArray[np.integer]
    """The place of each span's first token in the sequence that is written."""
    lengths: npt.NDArray[np.integer]
    """In tokens."""
    sources: npt.NDArray[np.integer]
    """Which of the sources holds it."""
    source_starts: npt.NDArray[np.integer]
    """The place of its first token there."""
    shifts: Indices
    target_blocks: Int32s | Tensor
    """The block table of what is written, from place 0 on. A tensor is on the device already."""
    target_block_size: int
    source_blocks: Int32s | Tensor
    """The same of what is read; unread where ``source_block_size`` is 0, since then a place is a slot."""
    source_block_size: int

    @classmethod
    def of_spans(cls, places: Places, sources: Indices, source_starts: Indices, shifts: Indices) -> SpanMoves:
        """Spans of dense donors, whose places are known."""
        target = places.blocks, places.block_size
        return cls(places.starts, places.lengths, sources, source_starts, shifts, *target, np.zeros(1, np.int32), 0)

    @classmethod
    def of_tokens(cls, moves: Moves) -> SpanMoves:
        """Moves between two pools, at least one: tokens that follow each other with one shift are a span."""
        first = np.flatnonzero(np.diff(moves.shift_rows, prepend=-1))
        lengths = np.diff(first, append=moves.tokens)
        # A table with a block per token: its place is its number among the moves, on both sides.
        taken, given = (slots.astype(np.int32) for slots in (moves.source_slots, moves.target_slots))
        shifts = moves.shifts[moves.shift_rows[first]]
        return cls(first, lengths, np.zeros_like(first), first, shifts, given, 1, taken, 1)

    @classmethod
    def of_slots(
        cls, spans: Sequence[Span], sources: Mapping[str, Tensor], target: Tensor, first_position: int
    ) -> SpanMoves:
        """Spans of donors in the pool, by slot numbers that stay on the device: nobody waits for them.

        ``sources``: the slots of each donor's tokens from its first on. ``target``: those of the sequence that is
        written, from ``first_position`` on.
        """
        begins = dict(zip(sources, accumulate((len(slots) for slots in sources.values()), initial=0), strict=False))
        columns = np.array(
            [
                (span.target_start - first_position, span.length, begins[span.donor_id] + span.donor_start, span.shift)
                for span in spans
            ],
            np.int64,
        )
        starts, lengths, source_starts, shifts = columns.T
        given, taken = target.to(torch.int32), torch.cat(list(sources.values())).to(torch.int32)
        return cls(starts, lengths, np.zeros_like(starts), source_starts, shifts, given, 1, taken, 1)

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum(dtype=np.int64))


def tiles(counts: npt.NDArray[np.integer], size: int) -> tuple[Int32s, Int32s]:
    """``counts`` things each, cut into tiles of ``size``: whose each tile is, and the first tile of each."""
    each = -(-counts // size)
    return np.repeat(np.arange(counts.size, dtype=np.int32), each), begins_of(each).astype(np.int32)


def _touched(firsts: Indices, ends: Indices, blocks: int) -> npt.NDArray[np.bool_]:
    steps = np.zeros(blocks + 1, np.int64)
    np.add.at(steps, firsts, 1)
    np.add.at(steps, ends, -1)
    result: npt.NDArray[np.bool_] = steps[:-1].cumsum() > 0
    return result


def _check_blocks(blocks: npt.NDArray[np.integer], block_size: int, pool: PagedKv) -> None:
    if blocks.min() < 0 or (int(blocks.max()) + 1) * block_size > pool.slots:
        raise InvalidKvError(
            f"blocks {blocks.min()} to {blocks.max()} of {block_size} tokens are not in the pool's {pool.slots} slots"
        )
    flags = np.zeros(int(blocks.max()) + 1, np.bool_)
    flags[blocks] = True
    if np.count_nonzero(flags) != blocks.size:
        raise InvalidKvError("a target slot is written twice: a block is in the table twice")
