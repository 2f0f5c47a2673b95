"""Blocks that need the block before them: a parent outlives its children, whatever the policy says."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import ClassVar

from semblend_core.eviction.policy import Entry, EvictionPolicy, Spared


class LeavesFirst(EvictionPolicy[Hashable]):
    """Any policy over blocks. When it names a block that others continue, the end of its longest-held branch goes.

    ``Entry.parent`` says what a block continues. A block whose parent is not held is not admitted, so the new blocks of
    a prompt come in from its beginning to its end. Touch them from the end to the beginning: then whoever goes by
    recency keeps a beginning longer than its continuations.

    Amortised, a victim costs what the policy's own costs: the way down to the end of a branch is walked once, and
    remembered while the policy goes on naming its beginning.
    """

    name: ClassVar[str] = "leaves_first"

    def __init__(self, policy: EvictionPolicy[Hashable]) -> None:
        super().__init__(policy.capacity)
        self.policy = policy
        self._children: dict[Hashable, dict[Hashable, None]] = {}
        self._path: list[Hashable] = []

    @property
    def ghosts(self) -> int:
        return self.policy.ghosts

    def forget_ghosts(self, gone: Callable[[Hashable], bool] | None = None) -> None:
        self.policy.forget_ghosts(gone)

    def victim(self, spared: Spared[Hashable] | None = None) -> Hashable | None:
        """``spared`` should spare a block's parents too; whatever it says, no parent goes before its children."""
        named = self.policy.victim(spared)
        if named is None:
            return None
        leaf = self._leaf_below(named)
        if spared is None or not spared(leaf):
            return leaf
        return self.policy.victim(lambda key: bool(self._children.get(key)) or spared(key))

    def check_integrity(self) -> None:
        super().check_integrity()
        self.policy.check_integrity()
        assert self.policy.entries.keys() == self.entries.keys(), "the policy holds others"
        for parent, children in self._children.items():
            assert children, "an empty family is kept"
            assert all(self.entries[child].parent == parent for child in children), "a child has another parent"

    def _leaf_below(self, named: Hashable) -> Hashable:
        path = self._path
        if not path or path[0] != named:
            self._path = path = [named]
        while path[-1] not in self.entries:
            path.pop()
        while families := self._children.get(path[-1]):
            path.append(next(iter(families)))
        return path[-1]

    def _would_close(self, key: Hashable, parent: Hashable) -> bool:
        """Whether ``parent`` itself continues ``key``, which its owner took out before its continuations."""
        if key not in self._children:
            return False
        above: Hashable | None = parent
        while above is not None and above != key:
            known = self.entries.get(above)
            above = None if known is None else known.parent
        return above == key

    def _admit(self, key: Hashable, entry: Entry, now: float) -> bool:
        if entry.parent is not None and (entry.parent not in self.entries or self._would_close(key, entry.parent)):
            return False
        if not self.policy.admit(key, entry, now):
            return False
        if entry.parent is not None:
            self._children.setdefault(entry.parent, {})[key] = None
        return True

    def touch(self, key: Hashable, now: float, entry: Entry | None = None) -> bool:
        """A block goes on continuing the one that it came in with, whatever ``entry`` says: no branch is a circle."""
        known = self.entries.get(key)
        if known is not None and entry is not None and entry.parent != known.parent:
            entry = replace(entry, parent=known.parent)
        return super().touch(key, now, entry)

    def _touch(self, key: Hashable, entry: Entry, now: float) -> None:
        self.policy.touch(key, now, entry)

    def _reprice(self, key: Hashable, entry: Entry) -> None:
        self.policy.note_copied(key, entry.copied)

    def _remove(self, key: Hashable, entry: Entry, evicted: bool) -> None:
        self.policy.remove(key, evicted=evicted)
        if entry.parent is not None:
            siblings = self._children[entry.parent]
            del siblings[key]
            if not siblings:
                del self._children[entry.parent]
