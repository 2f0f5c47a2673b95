"""The tree of what is computed behind approximate KV: whatever happens to it, every slot has one owner."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.serving import Lineage
from semblend_core.serving.tree.shadow import ShadowNode, ShadowTree


class Pool:
    """Slots that are free, or somebody's."""

    def __init__(self, slots: int) -> None:
        self.free = set(range(slots))

    def take(self, count: int) -> torch.Tensor:
        taken = sorted(self.free)[:count]
        self.free -= set(taken)
        return torch.tensor(taken, dtype=torch.int64)

    def give(self, slots: torch.Tensor) -> None:
        numbers = set(slots.tolist())
        assert not numbers & self.free, "a slot is freed twice"
        self.free |= numbers


def lineage(name: int) -> Lineage:
    return Lineage(bytes([name]), "namespace", 0, b"")


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def test_what_was_inserted_is_found_as_far_as_the_tokens_agree() -> None:
    pool = Pool(64)
    tree, ours = ShadowTree(2, pool.give), lineage(1)
    slots = pool.take(6)
    known, node = tree.insert(ours, tokens(1, 2, 3, 4, 5, 6), slots)
    assert known == 0
    assert tree.slots_to(node).tolist() == slots.tolist()
    matched, shorter = tree.match(ours, tokens(1, 2, 3, 9, 9))
    assert matched == 2, "whole pages"
    assert shorter is not None
    assert tree.slots_to(shorter).tolist() == slots[:2].tolist()
    assert tree.slots_to(node).tolist() == slots.tolist(), "a split changes nobody's path"
    assert tree.match(lineage(2), tokens(1, 2)) == (0, None)
    tree.check_integrity()


def test_a_second_of_the_same_adds_only_what_is_new() -> None:
    pool = Pool(64)
    tree, ours = ShadowTree(1, pool.give), lineage(1)
    first, second = pool.take(3), pool.take(4)
    tree.insert(ours, tokens(1, 2, 3), first)
    known, node = tree.insert(ours, tokens(1, 2, 4, 5), second)
    assert known == 2
    assert tree.slots_to(node).tolist() == [*first[:2].tolist(), *second[2:].tolist()]
    tree.check_integrity()


def test_what_is_held_stays_and_the_longest_unused_goes_first() -> None:
    pool, gone = Pool(64), []
    tree = ShadowTree(1, pool.give, gone.append)
    held, old, young = lineage(1), lineage(2), lineage(3)
    for each in (held, old, young):
        _, node = tree.insert(each, tokens(1, 2, 3), pool.take(3))
        if each is held:
            tree.hold(node)
            kept = node
    assert tree.evict(1) == 3
    assert gone == [old]
    tree.turnover += 10
    tree.match(young, tokens(1, 2))
    assert tree.evict(9, unused_for=5) == 1, "what was not asked for is older than what was"
    assert tree.evict(9) == 2
    assert tree.holds(kept)
    assert (tree.evictable_tokens, tree.held_tokens) == (0, 3)
    tree.let_go(kept)
    assert tree.evict(9) == 3
    assert not tree.holds(kept)
    assert len(pool.free) == 64


def test_a_hold_on_what_was_forgotten_is_let_go_without_harm() -> None:
    tree = ShadowTree(1, lambda slots: pytest.fail("the pool was emptied already"))
    _, node = tree.insert(lineage(1), tokens(1, 2), torch.tensor([5, 6]))
    tree.hold(node)
    tree.forget_all()
    tree.let_go(node)
    assert (tree.evictable_tokens, tree.held_tokens) == (0, 0)
    tree.check_integrity()


operations = st.lists(
    st.tuples(
        st.sampled_from(("insert", "match", "hold", "let go", "evict")),
        st.integers(0, 1),
        st.lists(st.integers(0, 2), min_size=1, max_size=6),
    ),
    max_size=40,
)


@given(operations, st.sampled_from((1, 2)))
@settings(max_examples=200, deadline=None)
def test_every_slot_has_one_owner(steps: list[tuple[str, int, list[int]]], page: int) -> None:
    pool = Pool(4096)
    tree, lineages = ShadowTree(page, pool.give), (lineage(0), lineage(1))
    held: list[tuple[ShadowNode, list[int]]] = []
    for what, which, pages in steps:
        ids = np.repeat(np.array(pages, np.int32), page)
        if what == "insert":
            own = pool.take(ids.size)
            known, _ = tree.insert(lineages[which], ids, own)
            pool.give(own[:known])
        elif what == "match":
            tree.match(lineages[which], ids)
        elif what == "hold":
            _, node = tree.match(lineages[which], ids)
            if node is not None:
                tree.hold(node)
                held.append((node, tree.slots_to(node).tolist()))
        elif what == "let go" and held:
            tree.let_go(held.pop(which % len(held))[0])
        elif what == "evict":
            tree.evict(ids.size)
        tree.check_integrity()
        owned = [slot for node in tree.nodes() for slot in node.slots.tolist()]
        assert len(set(owned)) == len(owned)
        assert pool.free == set(range(4096)) - set(owned)
        for node, slots in held:
            assert tree.slots_to(node).tolist() == slots, "what is held has changed"
