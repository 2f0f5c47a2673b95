"""Providers to ask, and the words to ask them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from semblend_core import DonorOffer, LookupRequest, Namespace, SemBlend, Settings, TokenIds, as_token_ids
from semblend_core.provider import create_provider

PATIENT = {"lookup_budget_ms": 60_000.0}


@pytest.fixture
def namespace() -> Namespace:
    return Namespace(
        model="m",
        revision="r",
        tokenizer="t",
        dtype="d",
        kv_layout="l",
        block_size=16,
        adapter=None,
        salt="tenant",
    )


@pytest.fixture
def text() -> Callable[[int, int], TokenIds]:
    def make(seed: int, size: int) -> TokenIds:
        return as_token_ids(np.random.default_rng(seed).integers(0, 50_000, size))

    return make


@pytest.fixture
def make_provider() -> Iterator[Callable[..., SemBlend]]:
    """``make_provider(**settings)``; ``parts`` are the factory's other arguments. Closed after the test."""
    made: list[SemBlend] = []

    def make(parts: dict[str, Any] | None = None, **settings: Any) -> SemBlend:
        made.append(create_provider(Settings(**{**PATIENT, **settings}), engine="test", **(parts or {})))
        return made[-1]

    yield make
    for provider in made:
        provider.close()


@pytest.fixture
def provider(make_provider: Callable[..., SemBlend]) -> SemBlend:
    return make_provider()


@pytest.fixture
def offer(namespace: Namespace) -> Callable[..., DonorOffer]:
    return lambda name, tokens, **more: DonorOffer(name, namespace, tokens, **more)


@pytest.fixture
def request_for(namespace: Namespace) -> Callable[..., LookupRequest]:
    return lambda name, tokens, **more: LookupRequest(name, namespace, tokens, **more)
