"""Fingerprints of a token sequence: hashes of k-grams, thinned by winnowing.

Winnowing keeps, in every window of ``w`` consecutive k-gram hashes, the smallest. Two sequences that share a run of at
least ``k + w - 1`` tokens therefore keep the same k-gram of that run, wherever it starts in either. All arithmetic is
32-bit and vectorised: a hash only proposes candidates, which are compared token by token later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from semblend_core.contract import TokenIds

Hashes: TypeAlias = npt.NDArray[np.uint32]
Positions: TypeAlias = npt.NDArray[np.int64]

_GRAM_MULTIPLIER = 0x85EBCA6B
_FINAL_MULTIPLIER = np.uint32(0xC2B2AE35)
_JOINING_MULTIPLIER = np.uint32(0x27D4EB2F)
_TAG_MULTIPLIER = np.uint32(0x9E3779B1)
_TAG_SEED = np.uint32(0x165667B1)
_HALF = np.uint32(16)
_FINAL_SHIFT = np.uint32(13)


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a sequence is fingerprinted. Every shared run of at least ``guaranteed_run`` tokens is found."""

    gram: int = 16
    """Tokens per k-gram: a power of two, so that hashes are built by doubling."""
    window: int = 32
    """Consecutive k-grams of which one is kept."""
    repeats: int = 8
    """Most occurrences of one k-gram kept per donor, the last ones: repetition must not flood the index."""
    query_repeats: int = 32
    """The same for a prompt. It is not stored, so more of it can be looked for."""

    def __post_init__(self) -> None:
        if self.gram < 2 or self.gram & (self.gram - 1):
            raise ValueError(f"gram must be a power of two, at least 2, got {self.gram}")
        if self.window < 1 or self.repeats < 1 or self.query_repeats < 1:
            raise ValueError(
                "window, repeats and query_repeats must be at least 1, "
                f"got {self.window}, {self.repeats} and {self.query_repeats}"
            )

    @property
    def guaranteed_run(self) -> int:
        return self.gram + self.window - 1

    @classmethod
    def for_min_span(cls, min_span_tokens: int, *, edited_text: bool = False) -> Geometry:
        """The sparsest geometry worth having that still finds every run of ``min_span_tokens``.

        ``edited_text``: keep the short anchors by which text with many small changes is recognised, too.
        """
        if min_span_tokens >= 63 and not edited_text:
            return cls(window=48)
        if min_span_tokens >= 47:
            return cls()
        if min_span_tokens >= 31:
            return cls(window=16)
        if min_span_tokens >= 16:
            return cls(gram=8, window=min(16, min_span_tokens - 7))
        raise ValueError(f"runs shorter than 16 tokens are not indexed, got min_span_tokens={min_span_tokens}")


def gram_hashes(tokens: TokenIds, gram: int) -> Hashes:
    """The hash of every k-gram; empty when the sequence is shorter than one."""
    return _joined(_half_hashes(tokens, gram), gram // 2)


def _half_hashes(tokens: TokenIds, gram: int) -> Hashes:
    """The polynomial of every half k-gram, each built of two halves of its own."""
    hashes = tokens.view(np.uint32)
    span, multiplier = 1, _GRAM_MULTIPLIER
    while span < gram // 2 and hashes.size > span:
        left = hashes[:-span] * np.uint32(multiplier)
        left += hashes[span:]
        hashes = left
        multiplier = multiplier * multiplier & 0xFFFFFFFF
        span *= 2
    return hashes


def _joined(halves: Hashes, half: int) -> Hashes:
    """One hash for every two halves, for the order of winnowing."""
    if halves.size <= half:
        return np.empty(0, np.uint32)
    hashes = halves[:-half] * _JOINING_MULTIPLIER
    hashes += halves[half:]
    # The polynomial is linear in the ids; mixing makes the order independent of their sizes.
    hashes ^= hashes >> _HALF
    hashes *= _FINAL_MULTIPLIER
    hashes ^= hashes >> _FINAL_SHIFT
    return hashes


def _tags(halves: Hashes, half: int, positions: Positions) -> Hashes:
    """A second hash for the chosen k-grams, from both halves and not from the first hash.

    The chosen have small first hashes, so few of their bits tell them apart: as tags, those would collide ten times as
    often as they should.
    """
    tags = halves[positions] ^ _TAG_SEED
    tags *= _TAG_MULTIPLIER
    tags ^= tags >> _FINAL_SHIFT
    tags += halves[positions + half]
    tags *= _FINAL_MULTIPLIER
    tags ^= tags >> _HALF
    return tags


def winnow(hashes: Hashes, window: int) -> Positions:
    """Positions whose hash is the smallest of some window that holds them, ties included, in ascending order."""
    window = min(window, hashes.size)
    if window <= 1:
        return np.arange(hashes.size)
    window_minimum = _sliding(np.minimum, hashes, window)
    # A hash is kept when it is the minimum of a window around it: the largest of those minima is then itself.
    padded = np.zeros(window_minimum.size + 2 * (window - 1), np.uint32)
    padded[window - 1 : window - 1 + window_minimum.size] = window_minimum
    kept: npt.NDArray[np.bool_] = _sliding(np.maximum, padded, window) == hashes
    return kept.nonzero()[0]


def keep_last_repeats(hashes: Hashes, positions: Positions, repeats: int, apart: int) -> Positions:
    """Of ``positions``, at most ``repeats`` per distinct hash, the last ones.

    Those less than ``apart`` before the next are periodic text, such as a line of dashes, and are left out too: the
    last one stands for all of the line, so that repeats count lines as they count passages.
    """
    chosen = hashes[positions]
    ordered = np.sort(chosen)
    if not (ordered[1:] == ordered[:-1]).any():
        return positions
    order = np.argsort(chosen[::-1], kind="stable")
    by_hash, places = chosen[::-1][order], positions[::-1][order]
    kept = np.ones(places.size, np.bool_)
    kept[1:] = (by_hash[1:] != by_hash[:-1]) | (places[:-1] - places[1:] >= apart)
    by_hash, places = by_hash[kept], places[kept]
    rank_is_low = np.ones(places.size, np.bool_)
    rank_is_low[repeats:] = by_hash[repeats:] != by_hash[:-repeats]
    return np.sort(places[rank_is_low])


def fingerprint(tokens: TokenIds, geometry: Geometry, repeats: int | None = None) -> tuple[Positions, Hashes]:
    """Positions of the kept k-grams, ascending, and the tags by which to find them."""
    half = geometry.gram // 2
    halves = _half_hashes(tokens, geometry.gram)
    hashes = _joined(halves, half)
    positions = winnow(hashes, geometry.window)
    positions = keep_last_repeats(hashes, positions, repeats or geometry.repeats, geometry.gram + 1)
    return positions, _tags(halves, half, positions)


def _sliding(reduce: np.ufunc, values: Hashes, window: int) -> Hashes:
    """``reduce`` over every run of ``window`` values, by doubling, with a last step that overlaps."""
    reduced, span = values, 1
    while span * 2 <= window:
        reduced = reduce(reduced[:-span], reduced[span:])
        span *= 2
    rest = window - span
    return reduce(reduced[:-rest], reduced[rest:]) if rest else reduced
