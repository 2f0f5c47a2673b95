"""Who searches and plans: SemBlend's own provider, or one that a setting names."""

from __future__ import annotations

from semblend_core import (
    AuditSink,
    ProviderError,
    SemanticLookupProvider,
    SemanticPrefixProvider,
    SemBlend,
    Settings,
    create_provider,
    named_provider,
    open_audit,
)
from semblend_vllm.compat.request_ids import client_id
from semblend_vllm.settings import VllmSettings

PROVIDER_SETTING = VllmSettings.variable("provider")


def provider_of(settings: Settings, own: VllmSettings) -> tuple[SemanticLookupProvider, AuditSink | None]:
    """And the audit stream that it shares with the cost gate: a provider of somebody else's may have its own."""
    provider = _named(own.provider) if own.provider else _ours(settings)
    if isinstance(provider, SemanticPrefixProvider):
        provider.on_init()
    return provider, provider.audit if isinstance(provider, SemBlend) else None


def _ours(settings: Settings) -> SemBlend:
    return create_provider(settings, engine="vllm", audit=open_audit(settings, "vllm", client_id))


def _named(named: str) -> SemanticLookupProvider:
    provider = named_provider(PROVIDER_SETTING, named)
    if not isinstance(provider, SemanticLookupProvider):
        raise ProviderError(
            f"{PROVIDER_SETTING}={named!r} gave a {type(provider).__name__}, which only names other tokens: vLLM finds "
            "KV by the tokens' own hashes. Implement SemanticLookupProvider"
        )
    return provider
