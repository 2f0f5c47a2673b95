"""Settings: declared once, read from the environment, checked before anything starts."""

from semblend_core.settings.declared import Embedder, EmbedProvider, QualityTier, Settings, declarations
from semblend_core.settings.errors import SettingError

__all__ = [
    "EmbedProvider",
    "Embedder",
    "QualityTier",
    "SettingError",
    "Settings",
    "declarations",
]
