"""Donors that went and are wanted again are noticed, once, and only where nobody else holds their text."""

from __future__ import annotations

import numpy as np
import pytest

from semblend_core.contract import TokenIds
from semblend_core.discovery import Geometry
from semblend_core.donors import DonorRegistry, regret

GEOMETRY = Geometry.for_min_span(31)


def text(seed: int, size: int = 400) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 30_000, size, dtype=np.int32)


def behind(document: TokenIds, seed: int) -> TokenIds:
    return np.concatenate([text(seed, 60), document])


def registry_with(*seeds: int, most: int = 2) -> DonorRegistry:
    registry = DonorRegistry(geometry=GEOMETRY, max_donors=most)
    for seed in seeds:
        registry.register("n", f"d{seed}", text(seed))
    return registry


def test_a_donor_that_had_to_go_is_wanted_again_in_another_place() -> None:
    registry = registry_with(1, 2, 3)
    found = registry.regrets("n", behind(text(1), 77))
    assert [each.donor_id for each in found] == ["d1"]
    assert found[0].tokens == pytest.approx(400, rel=0.2)
    assert found[0].after_s >= 0
    assert registry.regrets("n", behind(text(1), 77)) == [], "each is told once"
    registry.check_integrity()


def test_no_regret_for_what_others_hold_or_nobody_wants() -> None:
    registry = registry_with(1, 2)
    registry.register("n", "longer", behind(text(1), 5))
    assert registry.record_of("n", "d1") is None
    assert registry.regrets("n", behind(text(1), 77)) == [], "the longer donor holds its text"
    assert registry.regrets("n", text(9)) == [], "nobody ever held it"
    assert registry.regrets("other", text(1)) == [], "another namespace"


def test_a_donor_that_another_replaced_is_not_missed() -> None:
    registry = registry_with(1)
    registry.forget("n", "d1")
    assert registry.regrets("n", text(1)) == []
    registry = registry_with(1)
    registry.forget("n", "d1", missed=True)
    assert [each.donor_id for each in registry.regrets("n", text(1))] == ["d1"]


def test_what_is_remembered_is_bounded_and_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regret, "MOST_GONE", 5)
    registry = registry_with(*range(12))
    assert registry.regrets("n", text(1)) == [], "forgotten: others went since"
    assert registry.regrets("n", text(8)) != []
    registry.check_integrity()
    registry.clear()
    assert registry.regrets("n", text(9)) == []


def test_a_purge_forgets_what_the_tenant_had() -> None:
    tenant = "0123456789abcdef"
    namespace = tenant * 2
    registry = DonorRegistry(geometry=GEOMETRY, max_donors=1)
    registry.register(namespace, "a", text(1))
    registry.register(namespace, "b", text(2))
    registry.forget_tenant(tenant)
    registry.sweep()
    assert registry.regrets(namespace, text(1)) == []
