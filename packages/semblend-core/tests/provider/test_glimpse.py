"""A glimpse tells about what a lookup would find, leaves nothing behind, and changes no lookup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from semblend_core import DonorOffer, Glimpse, LookupRequest, Namespace, SemBlend, TokenIds

Text = Callable[[int, int], TokenIds]
Offer = Callable[..., DonorOffer]
Ask = Callable[..., LookupRequest]


@pytest.fixture
def passages(provider: SemBlend, text: Text, offer: Offer) -> list[TokenIds]:
    """Each of a donor of its own."""
    passages = [text(seed, 300) for seed in range(10)]
    for number, passage in enumerate(passages):
        provider.offer_donor(offer(f"d{number}", np.concatenate([text(100 + number, 20), passage])))
    return passages


@pytest.mark.parametrize("count", [1, 4, 10])
def test_it_counts_places_and_sees_how_much_they_are(
    provider: SemBlend, passages: list[TokenIds], text: Text, request_for: Ask, count: int
) -> None:
    asked = request_for("r", np.concatenate([*passages[:count], text(50, 300 * count)]))
    glimpse = provider.glimpse(asked)
    assert glimpse is not None
    assert glimpse.places == count
    assert 0.4 < glimpse.share < 0.6
    assert provider.stats().lookups == provider.stats().pinned_requests == 0


def test_of_new_text_it_sees_nothing(
    provider: SemBlend, passages: list[TokenIds], text: Text, request_for: Ask
) -> None:
    glimpse = provider.glimpse(request_for("r", text(50, 500)))
    assert glimpse is not None
    assert (glimpse.places, glimpse.share) == (0, 0.0)


def test_of_others_donors_it_sees_nothing(
    provider: SemBlend, passages: list[TokenIds], text: Text, namespace: Namespace, offer: Offer, request_for: Ask
) -> None:
    theirs = replace(namespace, salt="another tenant")
    assert provider.glimpse(replace(request_for("r", passages[0]), namespace=theirs)) is None, "they have no donors"
    provider.offer_donor(DonorOffer("theirs", theirs, text(60, 300)))
    glimpse = provider.glimpse(replace(request_for("r", passages[0]), namespace=theirs))
    assert glimpse is not None
    assert glimpse.places == 0


@pytest.mark.parametrize("exact", [0, 64])
def test_the_lookup_that_brings_it_back_finds_the_same(
    provider: SemBlend, passages: list[TokenIds], text: Text, request_for: Ask, exact: int
) -> None:
    tokens = np.concatenate([text(50, 64), *passages[2:8], text(51, 40)])
    plain = provider.lookup(request_for("plain", tokens, exact_prefix_tokens=exact))
    asked = request_for("glimpsed", tokens, exact_prefix_tokens=exact)
    glimpsed = provider.lookup(replace(asked, glimpse=provider.glimpse(asked)))
    assert plain.plan is not None
    assert glimpsed.plan is not None
    assert glimpsed.plan.spans == plain.plan.spans


@pytest.mark.parametrize("fingerprints", [None, "another provider's"])
def test_one_of_another_prompt_or_provider_changes_nothing(
    provider: SemBlend, passages: list[TokenIds], text: Text, request_for: Ask, fingerprints: Any
) -> None:
    asked = request_for("r", np.concatenate([text(50, 64), passages[3]]))
    if fingerprints is None:
        other = provider.glimpse(request_for("other", passages[1]))
        assert other is not None
        fingerprints = other.fingerprints
    assert provider.lookup(replace(asked, glimpse=Glimpse(1, 1.0, fingerprints))).plan is not None


def test_a_fault_in_it_is_contained(
    provider: SemBlend, passages: list[TokenIds], request_for: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(provider.registry, "glimpse", fail)
    assert provider.glimpse(request_for("r", passages[0])) is None
    assert provider.lookup(request_for("r", passages[0])).plan is not None
