"""KV behind approximate KV, by lineage and tokens: a radix tree of slots beside the engine's exact one.

It is apart from the exact tree, so that nothing of it can be matched, announced, or copied to host memory or storage
as if it were exact. It owns the slots that it holds, like the exact tree owns its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch
from torch import Tensor

from semblend_core.contract import TokenIds
from semblend_core.serving.lineage import Lineage


@dataclass(eq=False, slots=True)
class ShadowNode:
    """A run of tokens and their slots, behind those of its parents. A root has none."""

    lineage: Lineage
    tokens: TokenIds
    slots: Tensor
    parent: ShadowNode | None
    children: dict[bytes, ShadowNode] = field(default_factory=dict, repr=False)
    """By the tokens of their first page."""
    holders: int = 0
    last_used: tuple[int, int] = (0, 0)
    """The turnover then, and the how-maniest use of the tree it was."""

    def path(self) -> Iterator[ShadowNode]:
        """From here up to the root, which is left out."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class ShadowTree:
    """All lengths are whole pages. Called on the scheduler's thread only."""

    def __init__(
        self, page_size: int, free: Callable[[Tensor], None], gone: Callable[[Lineage], None] = lambda lineage: None
    ) -> None:
        """``free`` takes slots that the tree does not hold any more; ``gone`` is told of lineages without any KV."""
        self._page, self._free, self._gone = page_size, free, gone
        self._roots: dict[Lineage, ShadowNode] = {}
        self._leaves: set[ShadowNode] = set()
        self._uses = count(1)
        self.turnover = 0
        """Tokens that were evicted so far, here and from the engine's tree: how fast KV grows old."""
        self.evictable_tokens = 0
        self.held_tokens = 0

    # --- What is there -----------------------------------------------------------------------------------------------

    def match(self, lineage: Lineage, tokens: TokenIds) -> tuple[int, ShadowNode | None]:
        """How many of ``tokens``, the first behind the lineage's start, are there, and the node where they end."""
        root = self._roots.get(lineage)
        if root is None:
            return 0, None
        matched, node = self._walk(root, tokens)
        return matched, node if matched else None

    def slots_to(self, node: ShadowNode) -> Tensor:
        """Slots of all tokens from the lineage's start to the end of ``node``."""
        return torch.cat([step.slots for step in reversed(list(node.path()))])

    def holds(self, node: ShadowNode) -> bool:
        """Whether it was not evicted since it was matched."""
        top = node
        while top.parent is not None:
            top = top.parent
        return self._roots.get(node.lineage) is top

    def nodes(self) -> Iterator[ShadowNode]:
        for root in self._roots.values():
            yield from _below(root)

    # --- Changes -----------------------------------------------------------------------------------------------------

    def insert(self, lineage: Lineage, tokens: TokenIds, slots: Tensor) -> tuple[int, ShadowNode]:
        """Take ``slots`` for those of ``tokens`` that are not there yet. How many are, and the node where all end."""
        root = self._roots.get(lineage)
        if root is None:
            root = self._roots[lineage] = ShadowNode(lineage, tokens[:0], slots[:0], None)
        matched, node = self._walk(root, tokens)
        if matched < tokens.size:
            # Copies: the caller's are views of rows that change.
            own = slots[matched:].to(torch.int64, copy=True)
            leaf = ShadowNode(lineage, tokens[matched:].copy(), own, node, last_used=self._now())
            node.children[self._first_page(leaf.tokens)] = leaf
            self._leaves.discard(node)
            self._leaves.add(leaf)
            self.evictable_tokens += leaf.tokens.size
            node = leaf
        return matched, node

    def hold(self, node: ShadowNode) -> None:
        """Keep the path to ``node`` from eviction."""
        for step in node.path():
            if not step.holders:
                self.evictable_tokens -= step.tokens.size
                self.held_tokens += step.tokens.size
            step.holders += 1

    def let_go(self, node: ShadowNode) -> None:
        """The opposite."""
        if not self.holds(node):
            return  # All was forgotten meanwhile.
        for step in node.path():
            step.holders -= 1
            if not step.holders:
                self.evictable_tokens += step.tokens.size
                self.held_tokens -= step.tokens.size

    def evict(self, tokens: int, unused_for: int = 0) -> int:
        """Free at least so many tokens that nobody holds, if there are. The longest unused go first. How many went.

        ``unused_for``: only what was not used while so many tokens were turned over.
        """
        idle = [(leaf.last_used, id(leaf), leaf) for leaf in self._leaves if not leaf.holders]
        heapq.heapify(idle)
        freed = 0
        while idle and freed < tokens:
            (used_at, _), _, leaf = heapq.heappop(idle)
            if self.turnover - used_at < unused_for:
                break
            parent = self._remove(leaf)
            freed += leaf.tokens.size
            if parent in self._leaves and not parent.holders:
                heapq.heappush(idle, (parent.last_used, id(parent), parent))
        return freed

    def drop(self, lineages: Collection[Lineage]) -> None:
        """Free what nobody holds of these lineages. The rest goes when it is let go and grows old: nobody finds it."""
        wanted = set(lineages)
        idle = [leaf for leaf in self._leaves if leaf.lineage in wanted and not leaf.holders]
        while idle:
            parent = self._remove(idle.pop())
            if parent in self._leaves and not parent.holders:
                idle.append(parent)

    def forget_all(self) -> None:
        """The engine has emptied its pool: the slots are not this tree's any more."""
        self._roots.clear()
        self._leaves.clear()
        self.evictable_tokens = self.held_tokens = 0

    def check_integrity(self) -> None:
        """Raise AssertionError where the accounts do not close."""
        nodes = list(self.nodes())
        held = sum(node.tokens.size for node in nodes if node.holders)
        assert self.held_tokens == held, "held tokens are miscounted"
        assert self.evictable_tokens + held == sum(node.tokens.size for node in nodes), "tokens are miscounted"
        assert self._leaves == {node for node in nodes if not node.children}, "the leaves are others"
        for node in nodes:
            assert node.tokens.size == node.slots.numel() > 0, "a node without a slot for each token"
            assert node.tokens.size % self._page == 0, "a node of broken pages"
            assert node.holders >= max((child.holders for child in node.children.values()), default=0), "a lost hold"

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _walk(self, root: ShadowNode, tokens: TokenIds) -> tuple[int, ShadowNode]:
        now, node, at = self._now(), root, 0
        while at + self._page <= tokens.size:
            child = node.children.get(self._first_page(tokens[at:]))
            if child is None:
                break
            same = self._same_tokens(child.tokens, tokens[at:])
            node = child if same == child.tokens.size else self._split(child, same)
            node.last_used = now
            at += same
        return at, node

    def _split(self, node: ShadowNode, at: int) -> ShadowNode:
        """Put the first ``at`` tokens of ``node`` into a node of their own, in front of it."""
        assert node.parent is not None
        front = ShadowNode(node.lineage, node.tokens[:at], node.slots[:at].clone(), node.parent, holders=node.holders)
        node.parent.children[self._first_page(front.tokens)] = front
        node.tokens, node.slots, node.parent = node.tokens[at:], node.slots[at:].clone(), front
        front.children[self._first_page(node.tokens)] = node
        return front

    def _remove(self, leaf: ShadowNode) -> ShadowNode:
        """Take an idle leaf out; its parent, a leaf itself now unless it has others or is a root."""
        parent = leaf.parent
        assert parent is not None
        del parent.children[self._first_page(leaf.tokens)]
        leaf.parent = None
        self._leaves.discard(leaf)
        self.evictable_tokens -= leaf.tokens.size
        self._free(leaf.slots)
        if not parent.children:
            if parent.parent is not None:
                self._leaves.add(parent)
            else:
                del self._roots[parent.lineage]
                self._gone(parent.lineage)
        return parent

    def _now(self) -> tuple[int, int]:
        return self.turnover, next(self._uses)

    def _first_page(self, tokens: TokenIds) -> bytes:
        return tokens[: self._page].tobytes()

    def _same_tokens(self, ours: TokenIds, theirs: TokenIds) -> int:
        """How many of the first tokens are the same, in whole pages."""
        return shared_tokens(ours, theirs) // self._page * self._page


def shared_tokens(ours: TokenIds, theirs: TokenIds) -> int:
    """How many of the first tokens are the same."""
    length = min(ours.size, theirs.size)
    differ = np.flatnonzero(ours[:length] != theirs[:length])
    return int(differ[0]) if differ.size else length


def _below(node: ShadowNode) -> Iterator[ShadowNode]:
    waiting = list(node.children.values())
    while waiting:
        step = waiting.pop()
        yield step
        waiting.extend(step.children.values())
