"""What policies pick: the best positions, the first of each span, whole blocks of either."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from semblend_core.recompute.reuse import Mask, Reuse, tokens_in


def best(values: npt.NDArray[np.floating], available: Mask, count: int, block: int = 1) -> Mask:
    """The ``count`` best of the available positions, or as many whole blocks as that allows. Ties: earlier first."""
    candidates = np.flatnonzero(available)
    chosen = np.zeros(available.size, np.bool_)
    if count <= 0 or not candidates.size:
        return chosen
    if block == 1:
        order = np.argsort(-values[candidates], kind="stable")[:count]
        chosen[candidates[order]] = True
        return chosen
    chosen[candidates[_best_blocks(values[candidates], candidates // block, count, block)]] = True
    return chosen


def _best_blocks(values: npt.NDArray[np.floating], block_of: npt.NDArray[np.int64], count: int, block: int) -> Mask:
    """Of some positions, those in the blocks with the best means, ``count`` at most. Not all blocks need be whole."""
    totals = np.bincount(block_of, weights=values)
    sizes = np.bincount(block_of)
    losses = np.where(sizes > 0, -totals / np.maximum(sizes, 1), np.inf)
    # Whole blocks that there is room for, and all that are less than whole.
    most = count // block + tokens_in((sizes > 0) & (sizes < block))
    order = _first_ones(losses, most)[: np.count_nonzero(sizes)]
    taken = np.zeros(sizes.size, np.bool_)
    taken[order[np.cumsum(sizes[order]) <= count]] = True
    return taken[block_of]


def _first_ones(losses: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """What a stable sort puts first: ``count``, and what ties with the last of them. The rest is not sorted."""
    if count >= losses.size:
        return np.argsort(losses, kind="stable")
    near = np.flatnonzero(~(losses > np.partition(losses, count)[count]))
    return near[np.argsort(losses[near], kind="stable")]


def first_of_spans(reuse: Reuse, mask: Mask, tokens: float, block: int = 1) -> Mask:
    """``mask`` if it fits into ``tokens``, else the first of it in each span, equally many. In whole blocks."""
    limit = max(0, int(tokens))
    positions = np.flatnonzero(mask)
    if block > 1:
        return _first_blocks_of_spans(reuse, positions, limit, block)
    if positions.size <= limit:
        return mask
    begins = np.searchsorted(positions, [span.target_start for span in reuse.plan.spans])
    lengths = np.diff(begins, append=positions.size)
    whole, left = _shared_out(limit, lengths.tolist())
    # All of so many first tokens of each span, and of the next ones as many as there is room for.
    longer = lengths > whole
    counts = np.where(longer, whole, lengths) + (longer & (np.cumsum(longer) <= left))
    kept = np.zeros_like(mask)
    for begin, count in zip(begins.tolist(), counts.tolist(), strict=True):
        kept[positions[begin : begin + count]] = True
    return kept


def _first_blocks_of_spans(reuse: Reuse, positions: npt.NDArray[np.int64], limit: int, block: int) -> Mask:
    """The reused part of the blocks that ``positions`` are in, those first that lie nearest to their span's start."""
    kept = np.zeros_like(reuse.reused)
    blocks = np.unique(positions // block)
    within = (blocks[:, None] * block + np.arange(block)).ravel()
    number = np.repeat(np.arange(blocks.size), block)
    # The prompt may end within its last block.
    is_reused = reuse.reused[np.minimum(within, kept.size - 1)] & (within < kept.size)
    within, number = within[is_reused], number[is_reused]
    if within.size > limit:
        within = within[_best_blocks(-reuse.places_in_spans(within).astype(np.float64), number, limit, block)]
    kept[within] = True
    return kept


def _shared_out(tokens: int, lengths: Iterable[int]) -> tuple[int, int]:
    """What each may have that wants more, where all get equally many at most; and what is left, less than one each."""
    wanting, share = sorted(lengths), 0
    for satisfied, length in enumerate(wanting):
        asking = len(wanting) - satisfied
        if (length - share) * asking > tokens:
            return share + tokens // asking, tokens % asking
        tokens -= (length - share) * asking
        share = length
    return share, tokens


def whole_blocks(reuse: Reuse, mask: Mask, block: int) -> Mask:
    """The reused part of every whole block that ``mask`` covers as far as it is reused; all of it for blocks of 1."""
    if block == 1:
        return mask
    block_of = np.arange(mask.size) // block
    missing = np.bincount(block_of, weights=reuse.reused & ~mask) > 0
    kept: Mask = mask & ~missing[block_of]
    return kept
