"""vLLM's block pool, for blocks that are named by a lineage: found after the exact ones, evicted before them."""

from __future__ import annotations

from collections import OrderedDict
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
        self._shadows: OrderedDict[int, Any] = OrderedDict()
        """Ids of blocks with their names, those that are to be evicted first in front."""
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
            for block in freed:  # In the order in which vLLM would evict them.
                if block.block_id in self._shadows:
                    self._shadows.move_to_end(block.block_id)

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
        for block_id in list(self._shadows):
            block = self._pool.blocks[block_id]
            if block.block_hash is None or block.block_hash != self._shadows[block_id]:
                del self._shadows[block_id]  # Evicted, and perhaps given to somebody else.
            elif block.ref_cnt == 0 and block_id not in apart_from:
                chosen.append(block)
                if len(chosen) == count:
                    break
        return chosen


def _published(
    num_cached_blocks: int, num_full_blocks: int, block_size: int, *args: Any, **kwargs: Any
) -> tuple[int, int, int]:
    """Of vLLM's arguments: blocks that were published before, that are with this call, and their size."""
    return num_cached_blocks, num_full_blocks, block_size
