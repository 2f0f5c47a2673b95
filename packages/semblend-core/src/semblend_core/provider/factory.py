"""One way to make a provider, for every adapter."""

from __future__ import annotations

from semblend_core.contract import Namespace
from semblend_core.planning import CostModel
from semblend_core.provider.semblend import SemBlend
from semblend_core.settings import Settings
from semblend_core.telemetry import AuditSink, open_audit


def create_provider(
    settings: Settings | None = None,
    *,
    engine: str,
    namespace: Namespace | None = None,
    audit: AuditSink | None = None,
    cost: CostModel | None = None,
) -> SemBlend:
    """The provider as the settings (by default the environment's) describe it.

    ``engine`` names the caller in the audit stream. ``namespace`` is needed for the prefix contract only.
    """
    settings = settings or Settings.from_env()
    return SemBlend(
        settings,
        namespace=namespace,
        audit=audit or open_audit(settings, engine),
        cost=cost,
    )
