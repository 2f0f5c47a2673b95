"""Settings: declared once, read from the environment, checked before anything starts.

A package beside core declares its own as a ``DeclaredSettings`` and names the class under the entry point group
``semblend.settings``: then they are on the reference page, and no misspelt variable goes unnoticed.
"""

from semblend_core.settings.declared import QualityTier, Settings
from semblend_core.settings.declaring import DeclaredSettings, SettingError, setting
from semblend_core.settings.kinds import ByteSize, Choice, Flag, Never, Number, TenantIds, Text, Unset, Whole

__all__ = [
    "ByteSize",
    "Choice",
    "DeclaredSettings",
    "Flag",
    "Never",
    "Number",
    "QualityTier",
    "SettingError",
    "Settings",
    "TenantIds",
    "Text",
    "Unset",
    "Whole",
    "setting",
]
