"""SemBlend in the shape of TensorRT-LLM's proposed semantic provider: ``lookup`` and ``register_donor``.

The proposal (NVIDIA/TensorRT-LLM#14918) keeps finding a donor apart from loading its KV, as SemBlend does. Its types
are taken from the engine where it has them; the same shapes are here for those that have not.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

import numpy as np

from semblend_core import (
    DonorOffer,
    LookupRequest,
    Namespace,
    Outcome,
    OutcomeKind,
    SemanticLookupProvider,
    Settings,
    TokenIds,
    as_token_ids,
    create_provider,
)
from semblend_core.serving import DonorName, DonorPrefixes

HOME = "tensorrt_llm._torch.pyexecutor.connectors.semantic_kv_cache"


class SemanticKvMaterializationKind(StrEnum):
    DISCOVERY_ONLY = "discovery_only"
    """For telemetry and routing: never to be counted as matched tokens."""
    EXACT_PREFIX = "exact_prefix"
    """The donor begins with the request's own tokens."""


@dataclass(frozen=True)
class SemanticKvLookupRequest:
    request_id: str
    token_ids: Sequence[int]
    prompt_text: str | None
    model_id: str
    namespace: str
    already_computed_tokens: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SemanticKvLookupResult:
    donor_id: str
    similarity: float
    reusable_token_count: int
    materialization_kind: Any = SemanticKvMaterializationKind.DISCOVERY_ONLY
    donor_token_ids: Sequence[int] | None = None
    quality_signals: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class SemanticKvDonor:
    donor_id: str
    token_ids: Sequence[int]
    prompt_text: str | None
    model_id: str
    namespace: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


class SemBlendSemanticProvider:
    """Finds donors by SemBlend's span index. Threads may share it."""

    def __init__(self, settings: Settings | None = None, provider: SemanticLookupProvider | None = None) -> None:
        self._settings = settings or Settings.from_env()
        self._provider = provider or create_provider(self._settings, engine="trtllm")
        self._donors: dict[DonorName, TokenIds] = {}
        self._prefixes = DonorPrefixes()
        self._lock = threading.Lock()
        self._result, self._kind = _types()

    def lookup(self, request: Any) -> Any | None:
        """The donor that covers most of the prompt; EXACT_PREFIX where it also begins with the same tokens."""
        tokens = as_token_ids(list(request.token_ids))
        namespace = _namespace(request)
        with self._lock:
            exact = self._longest_prefix(namespace, tokens)
            if exact is not None:
                donor_id, length = exact
                if length > request.already_computed_tokens:
                    return self._found(request, namespace, donor_id, tokens, length, self._kind.EXACT_PREFIX)
            asked = LookupRequest(request.request_id, namespace, tokens, request.already_computed_tokens)
            found = self._provider.lookup(asked)
            # Only found, never loaded here: the connector that asks reports what becomes of it by its own means.
            kind = OutcomeKind.DISCOVERY_ONLY if found.plan is not None else OutcomeKind.DECLINED
            reason = found.reason if kind is OutcomeKind.DECLINED else None
            self._provider.report_outcome(Outcome(request.request_id, kind, reason=reason))
            if found.plan is None:
                return None
            covered = {
                each: sum(s.length for s in found.plan.spans if s.donor_id == each) for each in found.plan.donor_ids
            }
            donor_id = max(covered, key=covered.__getitem__)
            return self._found(request, namespace, donor_id, tokens, 0, self._kind.DISCOVERY_ONLY, covered[donor_id])

    def register_donor(self, donor: Any) -> None:
        tokens = as_token_ids(list(donor.token_ids))
        namespace = _namespace(donor)
        with self._lock:
            if (namespace.digest, donor.donor_id) in self._donors:
                self._drop((namespace.digest, donor.donor_id))
                self._provider.forget_donor(namespace, donor.donor_id)
            refused = self._provider.offer_donor(DonorOffer(donor.donor_id, namespace, tokens))
            for name in refused.evicted:
                self._drop(name)
            if refused.reason is None:
                self._donors[namespace.digest, donor.donor_id] = tokens
                self._prefixes.add((namespace.digest, donor.donor_id), tokens)

    def close(self) -> None:
        self._provider.close()

    def _drop(self, name: DonorName) -> None:
        self._donors.pop(name, None)
        self._prefixes.discard(name)

    def _longest_prefix(self, namespace: Namespace, tokens: TokenIds) -> tuple[str, int] | None:
        """The last token is always the engine's to compute."""
        for name, _ in islice(self._prefixes.holders(namespace.digest, tokens), 1):
            donor = self._donors[name]
            size = min(donor.size, tokens.size - 1)
            same = int(np.argmin(np.append(donor[:size] == tokens[:size], False)))
            if same >= self._settings.min_span_tokens:
                return name[1], same
        return None

    def _found(
        self,
        request: Any,
        namespace: Namespace,
        donor_id: str,
        tokens: TokenIds,
        reusable: int,
        kind: Any,
        covered: int | None = None,
    ) -> Any:
        share = (reusable if covered is None else covered) / max(1, tokens.size)
        donor = self._donors.get((namespace.digest, donor_id))
        return self._result(
            donor_id=donor_id,
            similarity=share,
            reusable_token_count=reusable,
            materialization_kind=kind,
            donor_token_ids=None if donor is None else donor.tolist(),
            quality_signals={"covered_tokens": reusable if covered is None else covered, "share_of_prompt": share},
            reason="semblend_exact_prefix" if reusable else "semblend_spans",
        )


def _namespace(request: Any) -> Namespace:
    """What the engine calls a namespace is whatever keeps its requests apart: here it is the salt."""
    return Namespace(
        model=request.model_id,
        revision="trtllm",
        tokenizer=request.model_id,
        dtype="any",
        kv_layout="discovery",
        block_size=1,
        adapter=None,
        salt=request.namespace,
    )


def _types() -> tuple[Any, Any]:
    """The result's type and the kinds: the engine's where it has them."""
    try:
        engine = importlib.import_module(HOME)
    except ImportError:
        return SemanticKvLookupResult, SemanticKvMaterializationKind
    return engine.SemanticKvLookupResult, engine.SemanticKvMaterializationKind
