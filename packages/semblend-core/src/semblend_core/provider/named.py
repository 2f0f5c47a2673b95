"""A provider of somebody else's, as a setting names it."""

from __future__ import annotations

import importlib
from typing import Any

from semblend_core.contract import SemanticLookupProvider, SemanticPrefixProvider


class ProviderError(ValueError):
    """What a setting names, or a call is given, is no provider that can be used here."""


def named_provider(variable: str, named: str) -> SemanticLookupProvider | SemanticPrefixProvider:
    """What ``package.module:callable`` makes. ``variable`` is the setting that names it, for the error's text."""
    module, _, name = named.partition(":")
    try:
        provider: Any = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ProviderError(f"{variable}={named!r} is not `package.module:callable`: {error}") from error
    if not isinstance(provider, SemanticLookupProvider | SemanticPrefixProvider):
        raise ProviderError(
            f"{variable}={named!r} gave a {type(provider).__name__}: a provider implements "
            "SemanticLookupProvider or SemanticPrefixProvider"
        )
    return provider
