"""The provider that implements both contracts over discovery, donors, planning and telemetry."""

from semblend_core.provider.at_start import what_is_on
from semblend_core.provider.factory import create_provider
from semblend_core.provider.lookup_miss import SemanticMissProvider, SemanticMissResult
from semblend_core.provider.named import ProviderError, named_provider
from semblend_core.provider.semblend import SemBlend

__all__ = [
    "ProviderError",
    "SemBlend",
    "SemanticMissProvider",
    "SemanticMissResult",
    "create_provider",
    "named_provider",
    "what_is_on",
]
