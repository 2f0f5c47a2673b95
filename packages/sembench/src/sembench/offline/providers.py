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

import numpy as np

from sembench.offline.blocks import split_blocks
from sembench.schema import InputError
from semblend_core import (
    DeclineReason,
    DonorOffer,
    LookupRequest,
    LookupResult,
    Namespace,
    OfferResult,
    Outcome,
    Plan,
    ProviderStats,
    SemanticLookupProvider,
    SettingError,
    Settings,
    Span,
    TokenIds,
    create_provider,
)

NAMES = ("core", "exact", "peer")
_NO_TIME_LIMIT_MS = 600_000.0
"""The limit protects an engine's scheduler; here it would only make the figures depend on the machine's load."""

Describe = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """What the command line says. None: the provider's own default."""

    block_size: int = 16
    min_similarity: float | None = None
    fuzzy: bool | None = None
    peer_python: Path | None = None
    peer_variables: Mapping[str, str] | None = None


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


class ExactBlockProvider(SemanticLookupProvider):
    """Proposes a recipient block where a donor has an equal one at a multiple of the block size, and nothing else."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._pools: dict[str, _BlockPool] = {}
        self._lookups = self._plans = 0
        self._shut_down = False

    def lookup(self, request: LookupRequest) -> LookupResult:
        self._lookups += 1
        if self._shut_down:
            return LookupResult(None, DeclineReason.SHUT_DOWN)
        pool = self._pools.get(request.namespace.digest)
        if pool is None:
            return LookupResult(None, DeclineReason.NO_DONORS)
        spans = self._spans(request, pool)
        if not spans:
            return LookupResult(None, DeclineReason.NO_SPANS)
        self._plans += 1
        prompt = int(request.token_ids.size)
        return LookupResult(Plan.over(request.request_id, prompt, request.exact_prefix_tokens, spans), None)

    def _spans(self, request: LookupRequest, pool: _BlockPool) -> list[Span]:
        size = self._block_size
        spans: list[Span] = []
        for number, block in enumerate(split_blocks(request.token_ids, size)):
            start = number * size
            if start < request.exact_prefix_tokens or block not in pool.places:
                continue
            last = spans[-1] if spans else None
            if last is not None and last.target_end == start and pool.goes_on(last, block):
                spans[-1] = replace(last, length=last.length + size)
            else:
                donor_id, donor_start = pool.places[block]
                spans.append(Span(start, donor_id, donor_start, size))
        return spans

    def offer_donor(self, offer: DonorOffer) -> OfferResult:
        tokens = offer.exact_token_ids
        if self._shut_down:
            return OfferResult(0, DeclineReason.SHUT_DOWN)
        if tokens.size < self._block_size:
            return OfferResult(0, DeclineReason.DONOR_TOO_SHORT)
        pool = self._pools.setdefault(offer.namespace.digest, _BlockPool(self._block_size))
        if not pool.add(offer.donor_id, tokens):
            return OfferResult(0, DeclineReason.DUPLICATE_DONOR)
        return OfferResult(int(tokens.size))

    def forget_donor(self, namespace: Namespace, donor_id: str) -> bool:
        pool = self._pools.get(namespace.digest)
        if pool is None or not pool.remove(donor_id):
            return False
        if not pool.donors:
            del self._pools[namespace.digest]
        return True

    def report_outcome(self, outcome: Outcome) -> None:
        """Nothing is pinned, so nothing is released."""

    def restrict_to_discovery(self, reason: str) -> None:
        """It has no other mode."""

    def stats(self) -> ProviderStats:
        donors = [tokens for pool in self._pools.values() for tokens in pool.donors.values()]
        return ProviderStats(
            lookups=self._lookups,
            plans=self._plans,
            donors=len(donors),
            donor_bytes=sum(tokens.nbytes for tokens in donors),
        )

    def check_integrity(self) -> None:
        for pool in self._pools.values():
            assert pool.donors
            assert {donor_id for donor_id, _ in pool.places.values()} <= set(pool.donors)

    def close(self) -> None:
        self._shut_down = True
        self._pools.clear()


class _BlockPool:
    """The donors of one namespace, and where each different block was first seen."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.donors: dict[str, TokenIds] = {}
        self.places: dict[bytes, tuple[str, int]] = {}

    def add(self, donor_id: str, tokens: TokenIds) -> bool:
        """False where the id is taken by other tokens."""
        if donor_id in self.donors:
            return np.array_equal(self.donors[donor_id], tokens)
        self.donors[donor_id] = tokens
        for number, block in enumerate(split_blocks(tokens, self._block_size)):
            self.places.setdefault(block, (donor_id, number * self._block_size))
        return True

    def remove(self, donor_id: str) -> bool:
        if donor_id not in self.donors:
            return False
        kept = {name: tokens for name, tokens in self.donors.items() if name != donor_id}
        self.donors, self.places = {}, {}
        for name, tokens in kept.items():
            self.add(name, tokens)
        return True

    def goes_on(self, span: Span, block: bytes) -> bool:
        """Whether the span's donor has ``block`` next."""
        following = self.donors[span.donor_id][span.donor_end : span.donor_end + self._block_size]
        return split_blocks(following, self._block_size) == [block]
