from __future__ import annotations

import random

import pytest

from semblend_core.eviction import POLICY_NAMES, Entry, LeavesFirst, policy_named


def test_a_block_without_the_block_before_it_is_not_admitted() -> None:
    blocks = LeavesFirst(policy_named("lru"))
    assert not blocks.admit("b", Entry(parent="a"), 0.0)
    assert blocks.admit("a", Entry(), 0.0)
    assert blocks.admit("b", Entry(parent="a"), 0.0)


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_no_block_goes_while_another_one_continues_it(name: str) -> None:
    draw = random.Random(7)
    capacity = 60
    blocks = LeavesFirst(policy_named(name, capacity=capacity))
    evicted = 0
    for now in range(600):
        prompt = _prompt(draw)
        for key in reversed(prompt):
            blocks.touch(key, now)
        parent = None
        for key in prompt:
            if key not in blocks and not blocks.admit(key, Entry(parent=parent, tokens=16), now):
                break
            parent = key
            while blocks.held > capacity:
                victim = blocks.victim(lambda other: other in prompt)  # noqa: B023
                assert victim is not None
                assert all(entry.parent != victim for entry in blocks.entries.values())
                blocks.remove(victim)
                evicted += 1
        blocks.check_integrity()
    assert evicted > 100


def test_nobody_goes_where_all_ends_are_spared() -> None:
    blocks = LeavesFirst(policy_named("lru"))
    blocks.admit("a", Entry(), 0.0)
    blocks.admit("b", Entry(parent="a"), 0.0)
    assert blocks.victim("b".__eq__) is None
    assert blocks.victim("a".__eq__) == "b"


def test_a_block_does_not_change_what_it_continues() -> None:
    blocks = LeavesFirst(policy_named("lru"))
    for key, parent in (("a", None), ("b", "a"), ("c", None)):
        assert blocks.admit(key, Entry(parent=parent), 0.0)
    blocks.touch("b", 1.0, Entry(parent="c", bytes=3))
    blocks.touch("a", 1.0, Entry(parent="b"))
    blocks.check_integrity()
    assert (blocks.held, blocks.order()) == (5, ["c", "b", "a"])


def test_blocks_that_lost_their_beginning_never_become_a_circle() -> None:
    blocks = LeavesFirst(policy_named("lru"))
    blocks.admit("a", Entry(), 0.0)
    blocks.admit("b", Entry(parent="a"), 0.0)
    blocks.remove("a")
    assert not blocks.admit("a", Entry(parent="b"), 1.0)
    assert blocks.admit("a", Entry(), 1.0)
    assert blocks.order() == ["b", "a"]


def test_who_went_is_forgotten_through_it() -> None:
    blocks = LeavesFirst(policy_named("s3fifo", capacity=4))
    for key in "abcdef":
        blocks.admit(key, Entry(), 0.0)
        if blocks.held > 4:
            blocks.remove(blocks.victim(key.__eq__))
    assert blocks.ghosts
    blocks.forget_ghosts()
    assert not blocks.ghosts


def _prompt(draw: random.Random) -> list[str]:
    """Prompts of up to twelve blocks that share their beginnings."""
    path = ""
    keys = []
    for _ in range(draw.randint(1, 12)):
        path += draw.choice("aab")
        keys.append(path)
    return keys
