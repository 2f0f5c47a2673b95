"""Which donors hold which fingerprint: one doubly linked chain per tag, newest donor first.

A chain keeps boilerplate shared by thousands of donors out of the hash table (one entry per tag) and bounds a lookup:
it walks a few links from the newest and stops. Links are array indices; index 0 is the end of every chain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from semblend_core.discovery.bucket_table import BucketTable, Tags
from semblend_core.discovery.growable import grown

Links: TypeAlias = npt.NDArray[np.uint32]

PAGE = 64
"""Entries are handed out in pages, each owned by one donor: the owner of an entry is the owner of its page."""
_PAGE_BITS = 6


@dataclass(frozen=True, slots=True)
class Candidates:
    """Places where the query's fingerprints occur: parallel arrays by ascending query position."""

    query: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    donor: npt.NDArray[np.int64]
    entry: Links

    def where(self, wanted: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Candidates:
        if wanted.dtype == np.bool_ and wanted.all():
            return self
        return Candidates(self.query[wanted], self.offset[wanted], self.donor[wanted], self.entry[wanted])


class FingerprintChains:
    """Not thread-safe: see ``SpanIndex``."""

    def __init__(self) -> None:
        self._table = BucketTable()
        self._offset: Links = np.zeros(PAGE, np.uint32)
        self._older: Links = np.zeros(PAGE, np.uint32)
        self._newer: Links = np.zeros(PAGE, np.uint32)
        self._page_owner: npt.NDArray[np.int32] = np.full(1, -1, np.int32)
        self._free_pages: list[int] = []
        self._pages = 1  # Page 0 holds the end-of-chain entry and is never handed out.

    @property
    def nbytes(self) -> int:
        pages_in_use = self._pages - len(self._free_pages)
        return self._table.nbytes + self.page_bytes(pages_in_use)

    @staticmethod
    def page_bytes(pages: int) -> int:
        return pages * (PAGE * 12 + 4)

    def bytes_after_inserting(self, count: int) -> int:
        pages = self._pages - len(self._free_pages) + _pages_for(count)
        return self._table.bytes_after_inserting(count) + self.page_bytes(pages)

    def prepare(self, count: int, pause: Callable[[], None]) -> Callable[[], None]:
        """Build whatever larger arrays ``count`` more entries need. The returned step, quick, puts them in place."""
        size = (self._pages + _pages_for(count)) * PAGE
        table = self._table.rebuilt_for(count, pause)
        offset, older, newer = grown(self._offset, size), grown(self._older, size), grown(self._newer, size)
        page_owner = grown(self._page_owner, size // PAGE)

        def put_in_place() -> None:
            self._table, self._offset, self._older, self._newer = table, offset, older, newer
            self._page_owner = page_owner

        return put_in_place

    def insert(self, tags: Tags, offsets: npt.NDArray[np.int64], donor: int) -> npt.NDArray[np.int32]:
        """Put a donor's fingerprints at the head of their chains; ``tags`` are sorted. Returns the pages used."""
        pages = self._take_pages(_pages_for(tags.size), donor)
        entries = _entries(pages, tags.size)
        last, first = _group_ends(tags)
        group_tags = tags[last]
        known, slots = self._table.find(group_tags)
        old_heads = np.zeros(group_tags.size, np.uint32)
        old_heads[known] = self._table.values_at(slots)

        self._offset[entries] = offsets
        self._older[entries[1:]] = entries[:-1]
        self._newer[entries[:-1]] = entries[1:]
        self._older[entries[first]] = old_heads
        self._newer[entries[last]] = 0
        self._newer[old_heads[known]] = entries[first[known]]

        self._table.set_values(slots, entries[last[known]])
        absent = np.ones(group_tags.size, np.bool_)
        absent[known] = False
        self._table.insert_absent(group_tags[absent], entries[last[absent]])
        return pages

    def remove(self, tags: Tags, pages: npt.NDArray[np.int32]) -> None:
        """Take out what ``insert`` put in with the same (sorted) tags: neighbours in their chains, one donor's."""
        entries = _entries(pages, tags.size)
        last, first = _group_ends(tags)
        newer, older = self._newer[entries[last]], self._older[entries[first]]
        # Entry 0 soaks up the links of chain ends; it is reset below.
        self._older[newer] = older
        self._newer[older] = newer
        self._older[0] = self._newer[0] = 0

        at_head = (newer == 0).nonzero()[0]
        found, slots = self._table.find(tags[last][at_head])
        successors = older[at_head][found]
        self._table.set_values(slots, successors)
        self._table.remove(slots[successors == 0])
        self._page_owner[pages] = -1
        self._free_pages.extend(pages.tolist())

    def newest(self, tags: Tags, positions: npt.NDArray[np.int64]) -> Candidates:
        """The newest occurrence of each tag; ``positions`` are the tags' places in the query."""
        found, slots = self._table.find(tags)
        return self._at(self._table.values_at(slots), positions[found])

    def with_an_older(self, newest: Candidates) -> Candidates:
        """Those whose fingerprint occurs more than once."""
        return newest.where(np.take(self._older, newest.entry).nonzero()[0])

    def from_entries(self, entries: Links, offsets: npt.NDArray[np.int64], donors: npt.NDArray[np.int64]) -> None:
        """Fill [entries, count] with occurrences from each of ``entries`` on to older ones; donor -1: no more.

        Entries from before the last change may by now be another's, or nobody's.
        """
        chain = np.empty((donors.shape[1], entries.size), np.uint32)
        chain[0] = entries
        for step in range(1, len(chain)):
            np.take(self._older, chain[step - 1], out=chain[step], mode="clip")
        donors.T[:] = np.take(self._page_owner, chain >> _PAGE_BITS, mode="clip")
        offsets.T[:] = np.take(self._offset, chain, mode="clip")

    def with_older(self, newest: Candidates, depth: int) -> Candidates:
        """``newest`` and the occurrences before them, up to ``depth`` per tag in all."""
        entries, query = newest.entry, newest.query
        all_entries, queries = [entries], [query]
        for _ in range(depth - 1):
            entries = np.take(self._older, entries)
            alive = entries.nonzero()[0]
            if not alive.size:
                break
            entries, query = entries[alive], query[alive]
            all_entries.append(entries)
            queries.append(query)
        joined = np.concatenate(queries)
        by_query = joined.argsort(kind="stable")
        return self._at(np.concatenate(all_entries)[by_query], joined[by_query])

    def _at(self, entries: Links, query: npt.NDArray[np.int64]) -> Candidates:
        return Candidates(
            query=query,
            offset=np.take(self._offset, entries).astype(np.int64),
            donor=np.take(self._page_owner, entries >> _PAGE_BITS).astype(np.int64),
            entry=entries,
        )

    def check_integrity(self) -> None:
        self._table.check_integrity()
        assert self._older[0] == self._newer[0] == 0, "the end-of-chain entry was written"
        owned = (self._page_owner[: self._pages] >= 0).nonzero()[0]
        assert owned.size + len(self._free_pages) + 1 == self._pages, "pages are lost or owned twice"
        self._check_links()

    def _check_links(self) -> None:
        entries = self._table.live_values()
        assert not self._newer[entries].any(), "a chain's head has a newer entry"
        seen = np.zeros(self._offset.size, np.bool_)
        while entries.size:
            assert not seen[entries].any(), "an entry is in two chains"
            assert np.unique(entries).size == entries.size, "two chains meet"
            seen[entries] = True
            assert (self._page_owner[entries >> _PAGE_BITS] >= 0).all(), "a chain leads into a free page"
            older = self._older[entries]
            assert (self._newer[older[older > 0]] == entries[older > 0]).all(), "a chain's links disagree"
            entries = older[older > 0]
        pages = np.unique(seen.nonzero()[0] >> _PAGE_BITS)
        owned = (self._page_owner[: self._pages] >= 0).nonzero()[0]
        assert np.array_equal(pages, owned), "a page is owned and empty"

    def _take_pages(self, count: int, donor: int) -> npt.NDArray[np.int32]:
        pages = [self._free_pages.pop() for _ in range(min(count, len(self._free_pages)))]
        fresh = count - len(pages)
        pages.extend(range(self._pages, self._pages + fresh))
        self._pages += fresh
        owned = np.array(pages, np.int32)
        self._page_owner[owned] = donor
        return owned


def _pages_for(count: int) -> int:
    return -(-count // PAGE)


def _entries(pages: npt.NDArray[np.int32], count: int) -> Links:
    within = np.arange(PAGE, dtype=np.uint32)
    entries: Links = ((pages.astype(np.uint32) << np.uint32(_PAGE_BITS))[:, None] + within).reshape(-1)
    return entries[:count]


def _group_ends(tags: Tags) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(index of the last, index of the first) item of each run of equal tags."""
    if not tags.size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    last = np.ones(tags.size, np.bool_)
    last[:-1] = tags[1:] != tags[:-1]
    first = np.ones(tags.size, np.bool_)
    first[1:] = last[:-1]
    return last.nonzero()[0], first.nonzero()[0]
