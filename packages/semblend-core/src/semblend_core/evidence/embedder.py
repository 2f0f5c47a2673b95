"""What every embedder promises, and how one is chosen by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from semblend_core.evidence.document import Document

Vectors: TypeAlias = npt.NDArray[np.float32]
"""Unit vectors as rows: float32 ``[windows, dimension]``."""


class EvidenceError(RuntimeError):
    """An embedder cannot run here. The message names what is missing and what supplies it."""


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


def embedder_builder(kind: str, *, model: str | None = None, provider: str = "auto") -> Callable[[], Embedder] | None:
    """How to build the embedder ``kind``, or None for ``"none"``. Checks the words only, loads nothing.

    ``kind`` is SEMBLEND_EMBEDDER, ``model`` SEMBLEND_EMBED_MODEL and ``provider`` SEMBLEND_EMBED_PROVIDER.
    The builder is meant for ``EvidenceWorker``, which calls it on its own thread.
    """
    if kind == "none":
        return None
    if kind == "jaccard":
        return _build_jaccard
    if kind != "minilm":
        raise ValueError(f"SEMBLEND_EMBEDDER must be minilm, jaccard or none, got {kind!r}")
    if provider not in ("auto", "cpu", "cuda"):
        raise ValueError(f"SEMBLEND_EMBED_PROVIDER must be auto, cpu or cuda, got {provider!r}")
    return lambda: _build_minilm(model, provider)


def unit_rows(rows: npt.NDArray[np.floating]) -> Vectors:
    """``rows`` scaled to length one. A zero row stays zero: it is similar to nothing."""
    vectors = np.asarray(rows, dtype=np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return scaled


# Imported late so that choosing one embedder never imports the other's dependencies.
def _build_jaccard() -> Embedder:
    from semblend_core.evidence.jaccard import JaccardEmbedder

    return JaccardEmbedder()


def _build_minilm(model: str | None, provider: str) -> Embedder:
    from semblend_core.evidence.minilm import MiniLMEmbedder

    return MiniLMEmbedder(model, provider=provider)
