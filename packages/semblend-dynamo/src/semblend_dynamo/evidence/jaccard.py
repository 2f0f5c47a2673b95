"""A model-free embedder: the cosine of two vectors estimates the Jaccard index of the token shingles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semblend_core import TokenIds
from semblend_dynamo.evidence.embedder import Document, Vectors

_SEED = 0x5E_3B_1E_4D
_CHUNK = 4096
"""Shingles hashed at a time: bounds the scratch memory to 8 MiB at 256 hashes."""


class JaccardEmbedder:
    """1-bit MinHash over token shingles, as one vector of ``hashes`` entries of +-1/sqrt(hashes).

    Two documents agree on a MinHash with probability J, and by chance on half of the other bits, so the
    expected cosine is J and its standard deviation sqrt((1 - J*J) / hashes): 0.06 at the default.

    One vector for the whole document, not one per window: a set knows no offsets, so the same passages in
    another order keep J near 1, while windows cut at other offsets would share only part of their shingles;
    and the best of many noisy windows would be biased upwards.

    Deterministic: fixed constants, no process-dependent hash.
    """

    name = "jaccard"

    def __init__(self, hashes: int = 256, shingle: int = 3) -> None:
        if hashes < 8:
            raise ValueError(f"hashes must be at least 8, got {hashes}")
        if shingle < 1:
            raise ValueError(f"shingle must be at least 1 token, got {shingle}")
        self.dimension = hashes
        self._shingle = shingle
        seeds = _mix(np.arange(2 * hashes, dtype=np.uint64) + np.uint64(_SEED))
        self._multipliers = seeds[:hashes] | np.uint64(1)
        self._offsets = seeds[hashes:]

    def embed(self, document: Document) -> Vectors:
        shingles = shingle_hashes(document.token_ids, self._shingle)
        if shingles.size == 0:
            return np.empty((0, self.dimension), dtype=np.float32)
        minima = self._minima(shingles)
        # The bit must depend on the whole minimum: a multiplier keeps the low bits of its input.
        signs = np.where(_mix(minima) >> np.uint64(63), np.float32(1), np.float32(-1))
        return (signs / np.float32(np.sqrt(self.dimension))).astype(np.float32)[None, :]

    def _minima(self, shingles: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        minima = np.full(self.dimension, np.iinfo(np.uint64).max, dtype=np.uint64)
        for start in range(0, shingles.size, _CHUNK):
            chunk = shingles[start : start + _CHUNK, None]
            np.minimum(minima, (chunk * self._multipliers + self._offsets).min(axis=0), out=minima)
        return minima


def shingle_hashes(token_ids: TokenIds, size: int) -> npt.NDArray[np.uint64]:
    """The distinct hashes of all runs of ``size`` tokens; a shorter document is one run of its own."""
    if token_ids.size == 0:
        return np.empty(0, dtype=np.uint64)
    tokens = token_ids.astype(np.uint64)
    runs = np.lib.stride_tricks.sliding_window_view(tokens, min(size, tokens.size))
    hashes = np.full(runs.shape[0], runs.shape[1], dtype=np.uint64)
    for column in range(runs.shape[1]):
        hashes = _mix(hashes ^ (runs[:, column] + np.uint64(1)))
    return np.unique(hashes)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The SplitMix64 finaliser: a bijection of 64-bit words; every output bit depends on every input bit."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
