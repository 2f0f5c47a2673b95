"""What vLLM tells routers of its blocks (``--kv-events-config``): of those that hold exact KV only.

An event names the tokens of a block. A router that goes by them would take approximate KV for an exact prefix, which no
request can find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

ANNOUNCING = ("cache_full_blocks", "cache_partial_block", "emit_cached_block_events")
"""Methods of vLLM's block pool that announce blocks of their first argument, a request."""


class ExactAnnouncements:
    """Listens to one block pool, and takes out of its events what must not be told."""

    def __init__(self, pool: Any, first_approximate: Callable[[Any], int | None]) -> None:
        """``first_approximate``: the position from which on a request's KV is approximate; None: all is exact."""
        self._pool, self._first_approximate = pool, first_approximate
        self._withheld: Counter[Any] = Counter()
        """Blocks in the pool that nobody was told of, by their hashes: nobody need be told when they go.

        Several may have one, as the same is computed twice.
        """
        for name in ANNOUNCING:
            setattr(pool, name, self._announcing(getattr(pool, name), new=name != "emit_cached_block_events"))
        self._take = pool.take_events
        pool.take_events = self.take_events

    def take_events(self) -> list[Any]:
        return [event for event in self._take() if self._concerns_others(event)]

    def _announcing(self, method: Callable[..., Any], new: bool) -> Callable[..., Any]:
        """``new``: whether it puts blocks into the pool, or tells of some that are there."""

        @wraps(method)
        def announced(request: Any, *args: Any, **kwargs: Any) -> Any:
            before = len(self._pool.kv_event_queue)
            answer = method(request, *args, **kwargs)
            # At once: later it would not be known whose blocks these are, and the request may have ended.
            first = self._first_approximate(request)
            if first is not None:
                told = self._pool.kv_event_queue[before:]
                self._pool.kv_event_queue[before:] = [event for event in told if self._cut(event, request, first, new)]
            return answer

        return announced

    def _cut(self, event: Any, request: Any, first: int, new: bool) -> bool:
        """Leave the exact blocks in an event; whether there are any."""
        if not isinstance(event, BlockStored):
            return True
        exact = 0
        if event.parent_block_hash not in self._withheld:
            approximate = set(map(maybe_convert_block_hash, request.block_hashes[first // event.block_size :]))
            while exact < len(event.block_hashes) and event.block_hashes[exact] not in approximate:
                exact += 1
        if new:
            self._withheld.update(event.block_hashes[exact:])
        event.block_hashes = event.block_hashes[:exact]
        event.token_ids = event.token_ids[: exact * event.block_size]
        event.extra_keys = event.extra_keys and event.extra_keys[:exact]
        return exact > 0

    def _concerns_others(self, event: Any) -> bool:
        if isinstance(event, AllBlocksCleared):
            self._withheld.clear()
        if not isinstance(event, BlockRemoved):
            return True
        event.block_hashes = [block_hash for block_hash in event.block_hashes if not self._was_withheld(block_hash)]
        return bool(event.block_hashes)

    def _was_withheld(self, block_hash: Any) -> bool:
        """Of a block that goes. One by one: a Counter's own subtraction looks at all that is withheld."""
        withheld = self._withheld[block_hash]
        if withheld > 1:
            self._withheld[block_hash] = withheld - 1
        elif withheld:
            del self._withheld[block_hash]
        return withheld > 0
