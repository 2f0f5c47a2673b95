"""One way to make a provider, for every adapter."""

from __future__ import annotations

from collections.abc import Callable

from semblend_core.contract import Namespace, TokenIds
from semblend_core.evidence import EvidenceWorker, embedder_builder
from semblend_core.planning import CostModel
from semblend_core.provider.semblend import SemBlend
from semblend_core.settings import Settings
from semblend_core.telemetry import AuditSink, open_audit


def create_provider(
    settings: Settings | None = None,
    *,
    engine: str,
    namespace: Namespace | None = None,
    detokenize: Callable[[TokenIds], str] | None = None,
    audit: AuditSink | None = None,
    cost: CostModel | None = None,
) -> SemBlend:
    """The provider as the settings (by default the environment's) describe it.

    ``engine`` names the caller in the audit stream. ``detokenize`` gives the text that the ``minilm`` embedder reads,
    on its own thread; without it that embedder stays off and spans are found by tokens alone. ``namespace`` is needed
    for the prefix contract only.
    """
    settings = settings or Settings.from_env()
    return SemBlend(
        settings,
        namespace=namespace,
        audit=audit or open_audit(settings, engine),
        evidence=_evidence_worker(settings, detokenize),
        detokenize=detokenize,
        cost=cost,
    )


def _evidence_worker(settings: Settings, detokenize: Callable[[TokenIds], str] | None) -> EvidenceWorker | None:
    if settings.embedder == "minilm" and detokenize is None:
        return None
    build = embedder_builder(settings.embedder, model=settings.embed_model or None, provider=settings.embed_provider)
    if build is None or not settings.enabled:
        return None
    return EvidenceWorker(
        build,
        queue_size=settings.embed_queue,
        min_similarity=settings.min_similarity,
        ann_threshold=settings.ann_threshold,
    )
