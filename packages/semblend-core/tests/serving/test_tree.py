"""Donors in an engine's own tree: found again by their tokens, held while they are copied, kept beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semblend_core import (
    DeclineReason,
    LookupRequest,
    Namespace,
    Plan,
    SemanticLookupProvider,
    Settings,
    TokenIds,
    create_provider,
    donor_id_of,
)
from semblend_core.kv import PagedKv, Rotation, StoreOptions
from semblend_core.serving import Claim, claim_of
from semblend_core.serving.tree import (
    KeptDonors,
    Load,
    Loading,
    SlotPool,
    TreeDonors,
    TreeLife,
    TreeMatch,
)
from semblend_core.testing import ReferenceProvider

NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="float32", kv_layout="tree", block_size=1, adapter=None, salt="a"
)
SETTINGS = Settings(lookup_budget_ms=600_000.0, min_span_tokens=32)
SLOTS, HEAD = 2048, 8
ROTATION = Rotation(HEAD, 0, HEAD, False, 1.0 / 10_000 ** (np.arange(0, HEAD, 2) / HEAD))


class ListTree:
    """An exact cache that is a list of prompts, with an allocator that hands slots out in order."""

    page_size = 1

    def __init__(self) -> None:
        self.prompts: dict[tuple[int, ...], torch.Tensor] = {}
        self.free_slots = list(range(SLOTS))
        self.held = 0

    def tokens_of(self, token_ids: TokenIds) -> Sequence[int]:
        return token_ids.tolist()

    def find(self, tokens: Sequence[int], key: Any) -> TreeMatch:
        best, slots = 0, torch.empty(0, dtype=torch.int64)
        for prompt, own in self.prompts.items():
            same = np.cumprod(np.equal(prompt[: len(tokens)], tokens[: len(prompt)])).sum()
            if same > best:
                best, slots = int(same), own[: int(same)]
        return TreeMatch(best, None, lambda: slots)

    def hold(self, node: Any) -> Any:
        self.held += 1

    def let_go(self, held: Any) -> None:
        self.held -= 1

    def allocate(self, tokens: int) -> torch.Tensor | None:
        if tokens > len(self.free_slots):
            return None
        return torch.tensor([self.free_slots.pop() for _ in range(tokens)])

    def free(self, slots: torch.Tensor) -> None:
        self.free_slots += slots.tolist()


class Bench:
    """A pool whose K and V tell token and position, a tree, and what SemBlend makes of them."""

    def __init__(self, kept: KeptDonors | None = None, provider: SemanticLookupProvider | None = None) -> None:
        self.tree = ListTree()
        self.keys, self.values = torch.zeros(SLOTS, 1, HEAD), torch.zeros(SLOTS, 1, HEAD)
        self.pool = SlotPool(PagedKv.from_slots([self.keys], [self.values]), ROTATION)
        self.provider: SemanticLookupProvider = provider or create_provider(SETTINGS, engine="test")
        self.donors = TreeDonors(self.provider, SETTINGS, self.tree, self.pool, kept)
        self.loading = Loading(self.tree, self.pool, self.donors)

    def serve(self, tokens: TokenIds) -> None:
        """Compute a prompt, and let it become a donor."""
        slots = self.tree.allocate(tokens.size)
        assert slots is not None
        self.keys[slots] = keys_of(tokens, np.arange(tokens.size))
        self.values[slots] = values_of(tokens)
        self.tree.prompts[tuple(tokens.tolist())] = slots
        self.donors.add(life_of(tokens), tokens, lambda: slots)

    def plan_for(self, tokens: TokenIds) -> Plan | None:
        return self.provider.lookup(LookupRequest("asked", NAMESPACE, tokens)).plan

    def check(self, load: Load | DeclineReason, claim: Claim, tokens: TokenIds) -> None:
        """Everything that no row computes is its own token's, at its own place."""
        assert isinstance(load, Load)
        for span in claim.spans:
            places = np.arange(span.target_start, span.target_end)
            slots = load.slots[torch.from_numpy(places - claim.start)]
            assert torch.equal(self.values[slots], values_of(tokens[places]))
            assert torch.allclose(self.keys[slots], keys_of(tokens[places], places), atol=1e-4)
        assert self.tree.held == 0


def prompt(seed: int, tokens: int) -> TokenIds:
    ids = np.random.default_rng(seed).integers(0, 50_000, tokens).astype(np.int32)
    ids.flags.writeable = False
    return ids


def values_of(tokens: TokenIds) -> torch.Tensor:
    return torch.from_numpy(tokens.astype(np.float32))[:, None, None].expand(-1, 1, HEAD)


def keys_of(tokens: TokenIds, places: np.ndarray) -> torch.Tensor:
    flat = torch.from_numpy(tokens.astype(np.float32) / 50_000)[:, None, None].expand(-1, 1, HEAD)
    return ROTATION.rotate(flat, places)


def life_of(tokens: TokenIds) -> TreeLife:
    return TreeLife(None, "asked", NAMESPACE, tokens, key=None)


DOCUMENT = prompt(1, 400)
DONOR = np.concatenate([prompt(2, 40), DOCUMENT])
ASKED = np.concatenate([prompt(3, 60), DOCUMENT, prompt(4, 20)])


def claim_for(bench: Bench) -> Claim:
    plan = bench.plan_for(ASKED)
    assert plan is not None
    assert bench.donors.are_of_same_tokens(life_of(ASKED), plan)
    claim = claim_of(plan, 1)
    assert claim is not None
    return claim.moved_only()


def test_a_donor_in_the_tree_is_moved_to_private_slots_and_let_go() -> None:
    bench = Bench()
    bench.serve(DONOR)
    claim = claim_for(bench)
    bench.check(bench.loading.load(life_of(ASKED), claim), claim, ASKED)


def test_a_donors_tokens_are_kept_once_by_the_provider_and_within_its_budget() -> None:
    bench = Bench()
    bench.serve(DONOR)
    donor = bench.donors.of(life_of(ASKED), donor_id_of(DONOR))
    assert donor is not None
    assert np.array_equal(bench.donors.tokens_of(donor), DONOR)
    assert donor.note.own_tokens is None, "they are kept twice"
    bench.provider.forget_donor(NAMESPACE, donor.donor_id)
    assert bench.donors.find(donor, DONOR.size).length == 0


def test_a_provider_that_gives_no_tokens_back_is_served_by_a_copy() -> None:
    bench = Bench(provider=ReferenceProvider(SETTINGS))
    bench.serve(DONOR)
    claim = claim_for(bench)
    bench.check(bench.loading.load(life_of(ASKED), claim), claim, ASKED)


def test_a_donor_that_the_tree_has_lost_declines_the_load_and_is_forgotten() -> None:
    bench = Bench()
    bench.serve(DONOR)
    claim = claim_for(bench)
    bench.tree.prompts.clear()
    assert bench.loading.load(life_of(ASKED), claim) is DeclineReason.DONOR_EVICTED
    assert (len(bench.donors), bench.tree.held, len(bench.tree.free_slots)) == (0, 0, SLOTS - DONOR.size)


def test_what_the_tree_still_holds_of_a_donor_is_a_donor() -> None:
    bench = Bench()
    bench.serve(DONOR)
    plan = bench.plan_for(ASKED)
    assert plan is not None
    assert not bench.donors.drop_missing(life_of(ASKED), plan)
    born = bench.donors.book.born(NAMESPACE, plan.donor_ids)
    (slots,) = bench.tree.prompts.values()
    bench.tree.prompts = {tuple(DONOR[:340].tolist()): slots[:340]}
    assert bench.donors.drop_missing(life_of(ASKED), plan)
    again = bench.plan_for(ASKED)
    assert again is not None
    assert max(span.donor_end for span in again.spans) == 340
    assert bench.donors.book.born(NAMESPACE, again.donor_ids) == born, "and no younger"
    assert not bench.donors.drop_missing(life_of(ASKED), again)


def test_what_the_tree_still_holds_is_no_donor_beside_one_that_begins_with_it() -> None:
    bench = Bench()
    bench.serve(DONOR)
    other = np.concatenate([DONOR[:340], prompt(9, 100)])
    bench.serve(other)
    plan = bench.plan_for(ASKED)
    assert plan is not None
    del bench.tree.prompts[tuple(DONOR.tolist())]
    assert bench.donors.drop_missing(life_of(ASKED), plan)
    assert [donor_id for _, donor_id in bench.donors.book._donors] == [donor_id_of(other)]
    again = bench.plan_for(ASKED)
    assert again is not None
    assert max(span.donor_end for span in again.spans) == 340
    assert not bench.donors.drop_missing(life_of(ASKED), again)


def test_a_full_pool_declines_the_load_and_lets_the_donors_go() -> None:
    bench = Bench()
    bench.serve(DONOR)
    claim = claim_for(bench)
    bench.tree.free_slots.clear()
    assert bench.loading.load(life_of(ASKED), claim) is DeclineReason.ALLOCATION_FAILED
    assert bench.tree.held == 0


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_what_is_kept_is_used_after_the_tree_has_lost_it(tmp_path: Path, disk: bool) -> None:
    room = 64 * 2**20
    where = {"host_bytes": 0, "disk_bytes": room, "disk_path": tmp_path} if disk else {"host_bytes": room}
    kept = KeptDonors(StoreOptions(**where))
    bench = Bench(kept)
    bench.serve(DONOR)
    kept.flush()
    bench.tree.prompts.clear()
    claim, life = claim_for(bench), life_of(ASKED)
    while (arrival := bench.loading.arrival(life, claim)) == "coming":
        kept.flush()
    assert arrival == "there"
    assert bool(life.fetch.donors) is disk
    bench.check(bench.loading.load(life, claim), claim, ASKED)
    bench.loading.stop_fetching(life)
    kept.close()


def test_a_conversation_in_the_tree_is_one_donor_and_one_kept_copy() -> None:
    kept = KeptDonors(StoreOptions(host_bytes=64 * 2**20))
    bench = Bench(kept)
    bench.serve(DONOR)
    bench.serve(np.concatenate([DONOR, prompt(7, 20)]))
    longer = np.concatenate([DONOR, prompt(8, 200)])
    bench.serve(longer)
    kept.flush()
    assert len(bench.donors) == 1
    assert kept.store.tier_of(NAMESPACE, donor_id_of(longer)) is not None
    assert kept.store.tier_of(NAMESPACE, donor_id_of(DONOR)) is None
    assert bench.provider.stats().declines == {DeclineReason.DONOR_COVERED: 1}
    assert bench.plan_for(ASKED) is not None
    kept.close()


def test_a_donor_that_the_tree_is_asked_for_exactly_is_known_as_long_as_the_tree_keeps_it() -> None:
    """Others come that fill the tree several times, and it keeps what it is asked for."""
    bench = Bench()
    bench.serve(DONOR)
    (slots,) = bench.tree.prompts.values()
    for seed in range(40):
        other = prompt(100 + seed, 200)
        bench.donors.add(life_of(other), other, lambda: slots)
        asked = np.concatenate([DONOR, prompt(200 + seed, 20)])
        bench.donors.add(life_of(asked), asked, lambda: slots)
    assert len(bench.donors) == 1 + (SLOTS - DONOR.size) // 192
    assert bench.provider.stats().declines == {DeclineReason.DONOR_COVERED: 40}, "it came once"
    assert bench.plan_for(ASKED) is not None


def test_what_found_no_room_in_the_store_replaces_no_kept_donor() -> None:
    kept = KeptDonors(StoreOptions(host_bytes=DONOR.size * 2 * HEAD * 4 + 4096))
    bench = Bench(kept)
    bench.serve(DONOR)
    kept.flush()
    bench.serve(np.concatenate([DONOR, prompt(8, 200)]))
    assert len(bench.donors) == 2
    assert kept.store.tier_of(NAMESPACE, donor_id_of(DONOR)) is not None
    kept.close()
