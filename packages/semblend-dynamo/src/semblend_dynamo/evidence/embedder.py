"""What an embedder reads, and what every embedder promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from semblend_core import TokenIds, as_token_ids

Vectors: TypeAlias = npt.NDArray[np.float32]
"""Unit vectors as rows: float32 ``[windows, dimension]``."""


class EvidenceError(RuntimeError):
    """An embedder cannot run here. The message names what is missing and what supplies it."""


class NoTextError(ValueError):
    """The embedder reads text, and the document gives none."""


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One prompt. Cheap to build on the scheduler's thread: nothing is detokenized before ``read_text``."""

    token_ids: TokenIds
    """Read-only int32; writable input is copied."""
    text: str | None = None
    """The prompt's text where the caller has it already."""
    detokenize: Callable[[TokenIds], str] | None = None
    """Called at most once, on the evidence thread, when ``text`` is None. Must be safe to call from there."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", as_token_ids(self.token_ids))

    def read_text(self) -> str:
        """The text, detokenized now if need be. Not for the scheduler's thread."""
        if self.text is not None:
            return self.text
        if self.detokenize is None:
            raise NoTextError(
                "the minilm embedder needs text: give Document a text or a detokenize callable, "
                "or set SEMBLEND_EMBEDDER=jaccard"
            )
        return self.detokenize(self.token_ids)


@runtime_checkable
class Embedder(Protocol):
    """Turns a document into unit vectors whose cosine is the similarity. Used from one thread at a time."""

    @property
    def name(self) -> str:
        """Goes into ``Evidence.method``."""

    @property
    def dimension(self) -> int:
        """Length of every vector."""

    def embed(self, document: Document) -> Vectors:
        """One vector per window, covering the whole document; no rows for an empty one."""


def unit_rows(rows: npt.NDArray[np.floating]) -> Vectors:
    """``rows`` scaled to length one. A zero row stays zero: it is similar to nothing."""
    vectors = np.asarray(rows, dtype=np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return scaled
