"""Several tensor-parallel ranks, each with a scheduler of its own that must do what the others do.

SGLang gives all of them the same requests in the same order, and each keeps a tree, an allocator and a pool of its own.
Their books stay alike as long as all of them make the same calls. So the first rank decides, the others are told, and
whatever may end differently at one of them is agreed upon before anybody counts on it. Every rank comes by the same
exchanges in the same order, whatever fails in between: one that is missing would be waited for.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from semblend_core.serving import contain

logger = logging.getLogger(__name__)

Said = TypeVar("Said")

Gather = Callable[[bytes], list[bytes]]
"""Gives what this rank says to all, and returns what each of them said, in their order."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One clock for all: what depends on the time must not end differently."""

    seconds_since_1970: float
    monotonic: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.time(), time.monotonic())


class Ranks:
    """The scheduler's thread only, except for ``tell``."""

    def __init__(self, rank: int, size: int, gather: Gather) -> None:
        self.rank, self.size, self._gather = rank, size, gather
        self._letters: deque[Any] = deque()
        """For all ranks, this one too. They go with the next exchange."""
        self._arrived: list[tuple[int, Any]] = []
        self._handlers: dict[type[Any], Callable[[int, Any], None]] = {}
        self._moment = self._next_moment = Moment.now()
        self._secret = b""

    @property
    def is_first(self) -> bool:
        """Whether it finds and decides."""
        return self.rank == 0

    def begin(self, seed: bytes) -> None:
        """``seed``: the first rank's counts. From here on all have the same time."""
        self._secret = self.exchange(seed)[0]
        self.deliver()

    def exchange(self, said: Said) -> list[Said]:
        """What each rank says here."""
        letters = [self._letters.popleft() for _ in range(len(self._letters))]
        beside = (letters, Moment.now() if self.is_first else None)
        # Between ranks of one engine, which send each other pickled requests anyway.
        try:
            mine = pickle.dumps((said, *beside), pickle.HIGHEST_PROTOCOL)
        except Exception:  # The others wait all the same.
            logger.exception("what rank %d has to say cannot be sent", self.rank)
            mine = pickle.dumps((None, *beside), pickle.HIGHEST_PROTOCOL)
        told = [pickle.loads(each) for each in self._gather(mine)]
        self._arrived += [(rank, letter) for rank, (_, sent, _) in enumerate(told) for letter in sent]
        self._next_moment = told[0][2]
        return [each[0] for each in told]

    def all_can(self, can: bool) -> bool:
        """Whether every rank can."""
        return all(self.exchange(can))

    # --- What the others hear when there is something to exchange ----------------------------------------------------

    def on(self, kind: type[Any], handler: Callable[[int, Any], None]) -> None:
        """``handler``: given letters of this kind, each with the rank that wrote it."""
        self._handlers[kind] = handler

    def tell(self, letter: Any) -> None:
        """All ranks hear it, at the same point of what they do. Any thread."""
        self._letters.append(letter)

    def deliver(self) -> None:
        """Here, and nowhere else, letters and the time that has passed take effect."""
        self._moment = self._next_moment
        arrived, self._arrived = self._arrived, []
        for rank, letter in arrived:
            # What fails at one rank must not keep it from what the others do next.
            contain("hearing from another rank", self._hear, rank, letter)

    def _hear(self, rank: int, letter: Any) -> None:
        self._handlers[type(letter)](rank, letter)

    # --- What all have alike -----------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._moment.seconds_since_1970

    def monotonic(self) -> float:
        return self._moment.monotonic

    def name_of(self, number: int) -> str:
        """A random name, the same at all ranks."""
        return hashlib.blake2b(number.to_bytes(8), key=self._secret, digest_size=8).hexdigest()
