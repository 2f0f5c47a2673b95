"""vLLM's block pool, for blocks that are named by a lineage: found after the exact ones, evicted before them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class ShadowBlocks:
    """Listens to one KV cache manager and its block pool."""

    def __init__(
        self, manager: Any, look: Callable[[Any], object], first_approximate: Callable[[Any], int | None]
    ) -> None:
        """``look``: called with a request before vLLM looks for its blocks, to name them.

        ``first_approximate``: the position from which on a request's KV is approximate; None: all is exact.
        """
        self._manager, self._pool = manager, manager.block_pool
        self._look, self._first_approximate = look, first_approximate
        self._shadows: dict[int, Any] = {}
        """Ids of blocks with their names."""
        self._evictable: dict[int, Any] = {}
        """Of these, blocks that nobody held when they were given back, in the order in which vLLM would evict them."""
        self._get_computed_blocks = manager.get_computed_blocks
        self._get_new_blocks = self._pool.get_new_blocks
        self._free_blocks = self._pool.free_blocks
        self._cache_full_blocks = self._pool.cache_full_blocks
        manager.get_computed_blocks = self.get_computed_blocks
        self._pool.get_new_blocks = self.get_new_blocks
        self._pool.free_blocks = self.free_blocks
        self._pool.cache_full_blocks = self.cache_full_blocks

    def holds(self, block_hash: Any) -> bool:
        return self._pool.get_cached_block(block_hash, [0]) is not None

    # --- vLLM's calls ------------------------------------------------------------------------------------------------

    def get_computed_blocks(self, request: Any) -> Any:
        self._look(request)
        return self._get_computed_blocks(request)

    def cache_full_blocks(self, request: Any, blocks: list[Any], *args: Any, **kwargs: Any) -> None:
        self._cache_full_blocks(request, blocks, *args, **kwargs)
        first = self._first_approximate(request)
        if first is None:
            return
        already, full, block_size = _published(*args, **kwargs)
        for block in blocks[max(already, first // block_size) : full]:
            self._shadows[block.block_id] = block.block_hash

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        freed = list(ordered_blocks)
        self._free_blocks(freed)
        if self._shadows:
            for block in freed:
                if block.block_id in self._shadows:
                    self._evictable.pop(block.block_id, None)
                    self._evictable[block.block_id] = block

    def get_new_blocks(self, num_blocks: int) -> Any:
        if self._shadows:
            self._spare_exact_among_next(num_blocks)
        return self._get_new_blocks(num_blocks)

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _spare_exact_among_next(self, count: int) -> None:
        """Put what is not exact in front of what would be evicted next and is."""
        free = self._next_free(count)
        spared = [block for block in free if self._is_exact(block)]
        if not spared:
            return
        others = [block for block in free if not self._is_exact(block)]
        first = self._oldest_shadows(len(spared), apart_from={block.block_id for block in others}) + others
        queue = self._pool.free_block_queue
        for block in first:
            queue.remove(block)
        queue.prepend_n(first)

    def _next_free(self, count: int) -> list[Any]:
        queue = self._pool.free_block_queue
        free: list[Any] = []
        block = queue.fake_free_list_head.next_free_block
        while len(free) < count and block is not queue.fake_free_list_tail:
            free.append(block)
            block = block.next_free_block
        return free

    def _is_exact(self, block: Any) -> bool:
        return block.block_hash is not None and self._shadows.get(block.block_id) != block.block_hash

    def _oldest_shadows(self, count: int, apart_from: set[int]) -> list[Any]:
        chosen: list[Any] = []
        passed: list[int] = []
        for block_id, block in self._evictable.items():  # However many there are, no more are looked at than needed.
            if block.block_hash is None or block.block_hash != self._shadows[block_id]:
                del self._shadows[block_id]  # Evicted, and perhaps given to somebody else.
                passed.append(block_id)
            elif block.ref_cnt:
                passed.append(block_id)  # It comes again when it is given back.
            elif block_id not in apart_from:
                chosen.append(block)
                if len(chosen) == count:
                    break
        for block_id in passed:
            del self._evictable[block_id]
        return chosen


def _published(
    num_cached_blocks: int, num_full_blocks: int, block_size: int, *args: Any, **kwargs: Any
) -> tuple[int, int, int]:
    """Of vLLM's arguments: blocks that were published before, that are with this call, and their size."""
    return num_cached_blocks, num_full_blocks, block_size
