"""What every eviction policy offers, for whole donors and for blocks alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Generic, TypeAlias, TypeVar

Key = TypeVar("Key", bound=Hashable)
Spared: TypeAlias = Callable[[Key], bool]
"""Whether a key may not go now, such as a donor that is being read."""
START_WEIGHTS: MappingProxyType[str, float] = MappingProxyType(
    {
        "system": 2.4,
        "template": 2.0,
        "code": 1.6,
        "legal_evidence": 1.5,
        "retrieved_context": 1.4,
        "tool_output": 1.1,
        "assistant": 1.0,
        "other": 0.8,
        "user": 0.7,
    }
)
"""The kinds of text, and what the semantic policies take each to be worth before they have learnt anything."""


TYPICAL_TOKEN_MS = 0.1
"""Of prefill, where nothing is known. Donors of which it is known and others stand beside each other after a start."""
LEAST_SHARE = 0.02
"""Of its price, that a key keeps which another holds entirely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is known of a key at one access. Everything has a default: a policy uses what it needs of it."""

    tokens: int = 1
    bytes: int = 1
    """What it takes of the budget, in the budget's own unit: bytes, tokens or blocks."""
    kind: str = "other"
    """What its text is: one of ``START_WEIGHTS``; an unknown kind counts as ``other``."""
    saved_ms: float = 0.0
    """Prefill time that a hit saves; 0: not known."""
    parent: Hashable | None = None
    """The key of the block before it, without which it serves nobody; None for a donor or a first block."""
    position: int = 0
    """Tokens of the prompt before it."""
    prompt_tokens: int = 0
    """Tokens of the whole prompt that it was accessed for; 0: not known."""
    tenant: str = ""
    copied: int = 0
    """Of its first tokens, how many a newer key holds too."""

    @property
    def price_ms(self) -> float:
        """Of losing it: what it would take to compute what nobody else holds."""
        whole = self.saved_ms or self.tokens * TYPICAL_TOKEN_MS
        return whole * max(LEAST_SHARE, 1 - self.copied / max(1, self.tokens)) if self.copied else whole


class EvictionPolicy(ABC, Generic[Key]):
    """Told of every access; names a victim when asked. Not thread-safe: the owner holds its lock.

    An access to ``key`` is a ``touch`` where the owner holds it. Otherwise it is::

        if policy.admit(key, entry, now):                # False: it is not worth a place
            while not enough_room:
                victim = policy.victim(key.__eq__)       # what comes in is spared
                policy.remove(victim)

    ``LeavesFirst`` is for blocks that need the block before them.
    """

    name: ClassVar[str]

    def __init__(self, capacity: int | None = None) -> None:
        """``capacity``: the budget, in the unit of ``Entry.bytes``; None where the owner has no fixed one."""
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity={capacity} must be at least 1")
        self.capacity = capacity
        self.may_refuse = True
        """False where the owner has decided already that what it admits stays."""
        self.entries: dict[Key, Entry] = {}
        """What is held, as it was last described."""
        self.held = 0
        """The sum of their ``bytes``."""

    def admit(self, key: Key, entry: Entry, now: float) -> bool:
        """``key`` comes in: called before room is made for it. False: better not, and the policy does not hold it.

        ``now``: seconds of a clock that never goes back. A key that is held is touched instead.
        """
        if key in self.entries:
            self.touch(key, now, entry)
            return True
        if not self._admit(key, entry, now):
            return False
        self.entries[key] = entry
        self.held += entry.bytes
        return True

    def touch(self, key: Key, now: float, entry: Entry | None = None) -> bool:
        """``key`` served a request. ``entry``: what is known of it now, if that changed. False: it is not held."""
        known = self.entries.get(key)
        if known is None:
            return False
        if entry is None or entry is known:
            self._touch(key, known, now)
            return True
        self.entries[key] = entry
        if entry.bytes != known.bytes:
            self.held += entry.bytes - known.bytes
            self._resize(key, entry.bytes - known.bytes)
        self._touch(key, entry, now)
        return True

    def remove(self, key: Key, *, evicted: bool = True) -> None:
        """``key`` is gone. Unknown keys are ignored. ``evicted``: for want of room, so that its return is a regret."""
        entry = self.entries.pop(key, None)
        if entry is not None:
            self.held -= entry.bytes
            self._remove(key, entry, evicted)

    def note_copied(self, key: Key, tokens: int) -> None:
        """A newer key holds the first ``tokens`` of this one too, so that losing it costs only the rest.

        This is no access. Unknown keys are ignored.
        """
        known = self.entries.get(key)
        if known is not None and tokens > known.copied:
            self.entries[key] = replace(known, copied=tokens)
            self._reprice(key, self.entries[key])

    @abstractmethod
    def victim(self, spared: Spared[Key] | None = None) -> Key | None:
        """Who should go next, leaving out those that are ``spared``; None when all are. It stays until ``remove``."""

    def order(self) -> list[Key]:
        """All keys, the next victim first, as if all had to go now. Not for every day: it copies the policy."""
        emptied = deepcopy(self)
        order = []
        while (key := emptied.victim()) is not None:
            order.append(key)
            emptied.remove(key)
        return order

    def forget_ghosts(self, gone: Callable[[Key], bool] | None = None) -> None:
        """Drop what is remembered of keys that are not held: all, or those that ``gone`` says."""

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: object) -> bool:
        return key in self.entries

    def __iter__(self) -> Iterator[Key]:
        return iter(self.entries)

    @property
    def ghosts(self) -> int:
        """How many keys it remembers that are not held."""
        return 0

    def check_integrity(self) -> None:
        assert self.held == sum(entry.bytes for entry in self.entries.values()), "what is held does not add up"

    @abstractmethod
    def _admit(self, key: Key, entry: Entry, now: float) -> bool: ...

    @abstractmethod
    def _touch(self, key: Key, entry: Entry, now: float) -> None: ...

    def _resize(self, key: Key, change: int) -> None:
        """A key takes more or less than before; ``_touch`` follows."""

    def _reprice(self, key: Key, entry: Entry) -> None:
        """For policies that weigh the price. Others see it at the next access."""

    @abstractmethod
    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None: ...
