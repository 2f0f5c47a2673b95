"""Evidence as the settings describe it."""

from __future__ import annotations

from collections.abc import Callable

from semblend_dynamo.evidence.embedder import Embedder
from semblend_dynamo.evidence.jaccard import JaccardEmbedder
from semblend_dynamo.evidence.minilm import MiniLMEmbedder
from semblend_dynamo.evidence.worker import EvidenceWorker
from semblend_dynamo.settings import EvidenceSettings


def open_evidence(settings: EvidenceSettings | None = None) -> EvidenceWorker | None:
    """The worker that the settings (by default the environment's) describe; None where they ask for none."""
    settings = settings or EvidenceSettings.from_env()
    build = embedder_builder(settings.embedder, model=settings.embed_model or None, provider=settings.embed_provider)
    if build is None:
        return None
    return EvidenceWorker(
        build,
        queue_size=settings.embed_queue,
        min_similarity=settings.min_similarity,
        ann_threshold=settings.ann_threshold,
    )


def embedder_builder(kind: str, *, model: str | None = None, provider: str = "auto") -> Callable[[], Embedder] | None:
    """How to build the embedder ``kind``, or None for ``"none"``. Checks the words only, loads nothing.

    ``kind`` is SEMBLEND_EMBEDDER, ``model`` SEMBLEND_EMBED_MODEL and ``provider`` SEMBLEND_EMBED_PROVIDER.
    The builder is meant for ``EvidenceWorker``, which calls it on its own thread.
    """
    if kind == "none":
        return None
    if kind == "jaccard":
        return JaccardEmbedder
    if kind != "minilm":
        raise ValueError(f"SEMBLEND_EMBEDDER must be minilm, jaccard or none, got {kind!r}")
    if provider not in ("auto", "cpu", "cuda"):
        raise ValueError(f"SEMBLEND_EMBED_PROVIDER must be auto, cpu or cuda, got {provider!r}")
    return lambda: MiniLMEmbedder(model, provider=provider)
