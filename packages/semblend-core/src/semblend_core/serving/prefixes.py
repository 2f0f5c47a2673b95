"""Which beginnings of prompts donors hold already: what a new prompt adds to them, and which donors it replaces."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from semblend_core.contract import TokenIds

DonorName: TypeAlias = tuple[str, str]
"""Digest of the namespace, and donor id."""
Hashes: TypeAlias = npt.NDArray[np.uint64]

STEP = 16
"""Beginnings are told apart at multiples of this many tokens."""


class DonorPrefixes:
    """A tree of prompts in steps of 16 tokens, each step known by a hash of everything up to it.

    A prompt of 32,000 tokens takes a few vectorised passes. A collision of hashes costs a donor, never correctness.
    """

    def __init__(self) -> None:
        # Keys of this process alone: nobody can make up prompts that collide.
        self._chance = np.random.Generator(np.random.PCG64(secrets.randbits(128)))
        self._keys: Hashes = np.empty(0, np.uint64)
        self._summed: tuple[Callable[[], TokenIds | None], Hashes] | None = None
        """Of the last tokens that were asked about: a new donor's are, several times in a row. They are not held."""
        self._roots: dict[str, _Node] = {}
        self._ends: dict[DonorName, _Node] = {}
        self._steps = 0
        """Of all nodes."""

    def __contains__(self, name: DonorName) -> bool:
        return name in self._ends

    @property
    def tokens(self) -> int:
        """What all hold together, where beginnings that several share are held once. In whole steps: never too many."""
        return STEP * self._steps

    def held(self, namespace: str, token_ids: TokenIds) -> int:
        """How many of the first tokens some donor holds at the same places, in whole steps."""
        root = self._roots.get(namespace)
        return 0 if root is None else STEP * _walk(root, self._sums(token_ids)[STEP - 1 :: STEP])[1]

    def holders(self, namespace: str, token_ids: TokenIds) -> Iterator[tuple[DonorName, int]]:
        """Donors that hold first tokens at the same places, and how many in whole steps: the most first."""
        root = self._roots.get(namespace)
        if root is None:
            return
        marks = self._sums(token_ids)[STEP - 1 :: STEP]
        path, matched = _walk(root, marks)
        at = sum(each.steps for each in path)
        seen: _Node | None = None
        if matched > at:  # Some of the steps of a node that goes on differently.
            seen = path[-1].children[int(marks[at])]
            yield from ((donor, STEP * matched) for node in seen.all() for donor in node.donors)
        for node in reversed(path):
            if not at:
                return
            yield from ((donor, STEP * at) for each in node.all(but=seen) for donor in each.donors)
            at -= node.steps
            seen = node

    def add(self, name: DonorName, token_ids: TokenIds) -> None:
        if name in self._ends:
            return
        sums = self._sums(token_ids)
        marks = sums[STEP - 1 :: STEP]
        root = self._roots.setdefault(name[0], _Node(marks[:0], None))
        path, matched = _walk(root, marks)
        node, at = path[-1], sum(each.steps for each in path)
        if matched > at:  # It leaves a node's steps in the middle.
            node, at = node.children[int(marks[at])].split(matched - at), matched
        if at < marks.size:
            node = node.grow(marks[at:].copy())
            self._steps += node.steps
        node.donors[name] = (token_ids.size, int(sums[-1]) if sums.size else 0)
        self._ends[name] = node

    def replaced_by(self, name: DonorName, token_ids: TokenIds) -> list[DonorName]:
        """The donors that are the beginning of these tokens, and shorter."""
        root = self._roots.get(name[0])
        if root is None:
            return []
        sums = self._sums(token_ids)
        path, _ = _walk(root, sums[STEP - 1 :: STEP])
        ends = ((donor, size, total) for node in path for donor, (size, total) in node.donors.items())
        return [donor for donor, size, total in ends if 0 < size < sums.size and int(sums[size - 1]) == total]

    def discard(self, name: DonorName) -> None:
        self._summed = None
        node = self._ends.pop(name, None)
        if node is None:
            return
        del node.donors[name]
        while node.parent is not None and not node.donors and not node.children:
            parent = node.parent
            del parent.children[int(node.marks[0])]
            self._steps -= node.steps
            node = parent
        if node.parent is None and not node.donors and not node.children:
            del self._roots[name[0]]
        elif node.parent is not None and not node.donors and len(node.children) == 1:
            node.join_child()
            self._ends.update(dict.fromkeys(node.donors, node))

    def clear(self) -> None:
        self._summed = None
        self._roots.clear()
        self._ends.clear()
        self._steps = 0

    def check_integrity(self) -> None:
        listed = {donor for root in self._roots.values() for node in root.all() for donor in node.donors}
        assert listed == set(self._ends), "donors and the tree of prompts disagree"
        steps = sum(node.steps for root in self._roots.values() for node in root.all())
        assert steps == self._steps, "steps are counted that nobody holds, or some twice"
        for root in self._roots.values():
            for node in root.all():
                assert node.parent is None or node.donors or len(node.children) > 1, "a node stands for nothing"
                assert all(int(child.marks[0]) == first for first, child in node.children.items()), "misplaced"

    def _sums(self, token_ids: TokenIds) -> Hashes:
        """A hash of every beginning: the sum of its tokens, each times the key of its place."""
        if self._summed is not None and self._summed[0]() is token_ids:
            return self._summed[1]
        if token_ids.size > self._keys.size:
            more = max(token_ids.size, 2 * self._keys.size) - self._keys.size
            fresh = self._chance.integers(0, 2**64, more, np.uint64) | np.uint64(1)
            self._keys = np.concatenate([self._keys, fresh])
        keyed = (token_ids.astype(np.uint64) + np.uint64(1)) * self._keys[: token_ids.size]
        sums = np.cumsum(keyed, dtype=np.uint64)
        self._summed = weakref.ref(token_ids), sums
        return sums


class _Node:
    """Some steps that all donors below share."""

    __slots__ = ("children", "donors", "last", "marks", "parent", "steps")

    def __init__(self, marks: Hashes, parent: _Node | None) -> None:
        self.parent = parent
        self._take(marks)
        self.children: dict[int, _Node] = {}
        """By their first step."""
        self.donors: dict[DonorName, tuple[int, int]] = {}
        """Those with no whole step more: their length and the hash of all they hold."""

    def _take(self, marks: Hashes) -> None:
        # Plain numbers beside the array: a walk passes hundreds of nodes.
        self.marks, self.steps, self.last = marks, int(marks.size), int(marks[-1]) if marks.size else 0

    def grow(self, marks: Hashes) -> _Node:
        child = self.children[int(marks[0])] = _Node(marks, self)
        return child

    def split(self, steps: int) -> _Node:
        """The new node between this one and its parent, which takes its first ``steps``."""
        assert self.parent is not None
        front = self.parent.grow(self.marks[:steps])
        self.parent = front
        self._take(self.marks[steps:])
        front.children[int(self.marks[0])] = self
        return front

    def join_child(self) -> None:
        """Become one with the only child."""
        (child,) = self.children.values()
        self._take(np.concatenate([self.marks, child.marks]))
        self.children, self.donors = child.children, child.donors
        for grandchild in self.children.values():
            grandchild.parent = self

    def all(self, but: _Node | None = None) -> Iterator[_Node]:
        """It and those below, without the child ``but``. Prompts may branch thousands of times: no recursion."""
        yield self
        below = [iter(self.children.values())]
        while below:
            node = next(below[-1], None)
            if node is None:
                below.pop()
            elif node is not but:
                yield node
                below.append(iter(node.children.values()))


def _walk(root: _Node, marks: Hashes) -> tuple[list[_Node], int]:
    """The nodes all of whose steps are these, from the root on, and how many steps match in all."""
    path, at, steps = [root], 0, marks.tolist()
    while at < len(steps):
        child = path[-1].children.get(steps[at])
        if child is None:
            break
        end = at + child.steps
        if end > len(steps) or steps[end - 1] != child.last:
            ours = marks[at:end]
            return path, at + int(np.argmin(np.append(child.marks[: ours.size] == ours, False)))
        path.append(child)
        at = end
    return path, at
