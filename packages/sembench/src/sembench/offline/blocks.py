"""Block metrics of one recipient. A block is ``block_size`` tokens at a multiple of it.

What is left at the end of a prompt is no block.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semblend_core import Span, TokenIds

BlockMask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BlockMetrics:
    """Counts of full recipient blocks."""

    total: int
    exact: int
    """Equal, token by token, to a full block of a donor, wherever it stands there."""
    candidate: int
    """Every token is proposed from a donor."""
    eligible: int
    """Candidates from one donor at consecutive positions: what a block copy could load."""
    eligible_beyond_exact: int


def measure_blocks(
    recipient: TokenIds, donor_blocks: AbstractSet[bytes], spans: Iterable[Span], block_size: int
) -> BlockMetrics:
    """``donor_blocks`` are those of ``collect_blocks``; ``spans`` are what a provider proposes, taken at their word."""
    exact = find_exact_blocks(recipient, donor_blocks, block_size)
    candidate, eligible = find_proposed_blocks(recipient.size, spans, block_size)
    return BlockMetrics(
        total=recipient.size // block_size,
        exact=int(exact.sum()),
        candidate=int(candidate.sum()),
        eligible=int(eligible.sum()),
        eligible_beyond_exact=int((eligible & ~exact).sum()),
    )


def collect_blocks(donors: Iterable[TokenIds], block_size: int) -> set[bytes]:
    """Every full block of every donor. Kept whole, so that no hash can collide."""
    return {block for donor in donors for block in split_blocks(donor, block_size)}


def find_exact_blocks(recipient: TokenIds, donor_blocks: AbstractSet[bytes], block_size: int) -> BlockMask:
    """Per full recipient block: whether it equals a full block of a donor."""
    return np.array([block in donor_blocks for block in split_blocks(recipient, block_size)], np.bool_)


def count_exact_prefix(recipient: TokenIds, donors: Iterable[TokenIds], block_size: int) -> int:
    """Tokens of the leading full blocks that the recipient shares with one donor: what a prefix cache would give."""
    longest = 0
    for donor in donors:
        shared = min(recipient.size, donor.size)
        differing = np.flatnonzero(recipient[:shared] != donor[:shared])
        longest = max(longest, int(differing[0]) if differing.size else shared)
    return longest // block_size * block_size


def find_proposed_blocks(tokens: int, spans: Iterable[Span], block_size: int) -> tuple[BlockMask, BlockMask]:
    """Per full block: whether it is a candidate, and whether it is eligible."""
    source = np.full(tokens, -1, np.int64)  # The donor of each position, by number; -1: none.
    shift = np.zeros(tokens, np.int64)  # Constant over consecutive positions of one donor.
    numbers: dict[str, int] = {}
    for span in spans:
        target = slice(span.target_start, span.target_end)
        source[target] = numbers.setdefault(span.donor_id, len(numbers))
        shift[target] = span.shift
    full = tokens // block_size * block_size
    sources, shifts = source[:full].reshape(-1, block_size), shift[:full].reshape(-1, block_size)
    candidate: BlockMask = np.all(sources >= 0, axis=1)
    one_donor: BlockMask = np.all(sources == sources[:, :1], axis=1)
    consecutive: BlockMask = np.all(shifts == shifts[:, :1], axis=1)
    return candidate, candidate & one_donor & consecutive


def split_blocks(ids: TokenIds, block_size: int) -> list[bytes]:
    """The full blocks, as bytes that are equal where the tokens are."""
    width = block_size * 4
    data = np.ascontiguousarray(ids[: ids.size // block_size * block_size], "<i4").tobytes()
    return [data[start : start + width] for start in range(0, len(data), width)]
