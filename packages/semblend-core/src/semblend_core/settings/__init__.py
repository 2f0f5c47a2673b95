"""Settings: declared once, read from the environment, checked before anything starts."""

from semblend_core.settings.declaration import Declaration
from semblend_core.settings.declared import (
    Capture,
    Embedder,
    EmbedProvider,
    Eviction,
    QualityTier,
    Settings,
    declarations,
)
from semblend_core.settings.errors import SettingError, WrongSetting

__all__ = [
    "Capture",
    "Declaration",
    "EmbedProvider",
    "Embedder",
    "Eviction",
    "QualityTier",
    "SettingError",
    "Settings",
    "WrongSetting",
    "declarations",
]
