"""Who is asked: core's provider, the exact-block baseline, the public peer, or any factory by its name."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sembench.offline.exact_provider import ExactBlockProvider
from sembench.schema import InputError
from semblend_core import SemanticLookupProvider, SettingError, Settings, create_provider

NAMES = ("core", "exact", "peer")
_NO_TIME_LIMIT_MS = 600_000.0
"""The limit protects an engine's scheduler; here it would only make the figures depend on the machine's load."""


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """What the command line says. None: the provider's own default."""

    block_size: int = 16
    min_similarity: float | None = None
    fuzzy: bool | None = None
    peer_python: Path | None = None
    peer_variables: Mapping[str, str] | None = None


Describe = Callable[[], dict[str, Any]]


def open_provider(name: str, options: ProviderOptions) -> tuple[SemanticLookupProvider, Describe]:
    """The provider, to be closed by the caller, and what a result should say of it, asked when the run is over."""
    if name == "core":
        settings = _settings(options)
        changed = settings.changed()
        return create_provider(settings, engine="sembench"), lambda: {"name": name, "settings": changed}
    if name == "exact":
        _refuse_similarity(name, options)
        return ExactBlockProvider(options.block_size), lambda: {"name": name, "block_size": options.block_size}
    if name == "peer":
        from sembench.offline.peer import open_peer

        if options.fuzzy is not None:
            raise InputError("--fuzzy is a setting of core; the peer has its own, set with --peer-env")
        peer = open_peer(options.peer_python, options.min_similarity, options.peer_variables or {})
        return peer, lambda: peer.description
    if ":" in name:
        return _from_factory(name, options)
    raise InputError(f"--provider {name}: is none of {', '.join(NAMES)}, nor module:attr")


def _settings(options: ProviderOptions) -> Settings:
    if options.min_similarity is not None:
        raise InputError("--min-similarity is the peer's: core finds spans by their tokens, whatever their similarity")
    changes: dict[str, Any] = {"lookup_budget_ms": _NO_TIME_LIMIT_MS}
    if options.fuzzy is not None:
        changes["fuzzy_chunks"] = options.fuzzy
    try:
        return replace(Settings.from_env(), **changes)
    except SettingError as error:
        raise InputError(str(error)) from None


def _refuse_similarity(name: str, options: ProviderOptions) -> None:
    if options.min_similarity is not None or options.fuzzy is not None:
        raise InputError(f"--provider {name}: compares whole blocks; leave out --min-similarity and --fuzzy")


def _from_factory(name: str, options: ProviderOptions) -> tuple[SemanticLookupProvider, Describe]:
    """Called with those of ``settings`` and ``block_size`` that it has parameters for."""
    factory = _named_callable(name)
    settings = _settings(options)
    offered = {"settings": settings, "block_size": options.block_size}
    try:
        accepted = set(inspect.signature(factory).parameters)
    except ValueError:  # Some classes of C extensions show none.
        accepted = set()
    arguments = {key: value for key, value in offered.items() if key in accepted}
    try:
        provider = factory(**arguments)
    except Exception as error:
        raise InputError(f"--provider {name}: the factory raised {type(error).__name__}: {error}") from error
    if not isinstance(provider, SemanticLookupProvider):
        raise InputError(f"--provider {name}: returned {type(provider).__name__}, not a SemanticLookupProvider")
    told = {"settings": settings.changed()} if "settings" in arguments else {}
    return provider, lambda: {"name": name, "class": type(provider).__qualname__, **told}


def _named_callable(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # As with `python -m`: a module beside the user's files can be named.
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # Importing runs the user's code.
        raise InputError(f"--provider {name}: {type(error).__name__}: {error}") from None
    if not callable(found):
        raise InputError(f"--provider {name}: is not callable; name a class or a function that returns a provider")
    return found  # type: ignore[no-any-return]
