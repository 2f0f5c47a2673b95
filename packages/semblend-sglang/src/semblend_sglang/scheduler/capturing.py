"""Prompts that SGLang's own cache has taken: they prove that keys move, and become donors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from torch import Tensor

from semblend_core import SelfTestResult, Settings, TokenIds
from semblend_core.kv import RotationProof
from semblend_core.serving import SelfTest, contain, tokens_to_keep
from semblend_core.serving.tree import SlotPool, TreeDonors
from semblend_sglang.scheduler.requests import Asked, SglangLife, SglangRequests


class Capturing:
    def __init__(
        self,
        settings: Settings,
        requests: SglangRequests,
        donors: TreeDonors,
        pool: SlotPool,
        self_test: SelfTest,
        page_size: int,
        hear: Callable[[SelfTestResult], None],
    ) -> None:
        """``hear``: is told what the prompts of this rank have shown."""
        self._page_size, self._settings, self._requests, self._donors = page_size, settings, requests, donors
        self._pool, self._self_test, self._hear = pool, self_test, hear
        self._proof = RotationProof(*pool.rotations)
        self._cached_lately: deque[tuple[SglangLife, Callable[[], Tensor], bool]] = deque()
        """Prompts that become donors when their first tokens are out, and whether the self-test has seen them."""
        self.old_weights_in_tree = False
        """Until the tree is emptied, what is cached may be of weights that are no more."""

    def cached(self, asked: Asked, read_slots: Callable[[], Tensor]) -> None:
        """The exact tree holds the whole prompt now: it may become a donor."""
        contain("taking a prompt for a donor", self._cached, asked, read_slots)

    def catch_up(self) -> None:
        """First tokens are out, or somebody wants to know of donors: what was cached lately becomes some."""
        while self._cached_lately:
            life, read_slots, has_proved = self._cached_lately.popleft()
            if not life.purged and not self.old_weights_in_tree:
                contain("making a donor", self._make_donor, life, read_slots, has_proved)

    def forget(self) -> None:
        """What was cached lately is not in the tree any more, or is not to be used."""
        self._cached_lately.clear()

    def _cached(self, asked: Asked, read_slots: Callable[[], Tensor]) -> None:
        life = self._requests.of_request(asked.request)
        if life is None or life.captured or life.purged or life.is_approximate:
            return
        if asked.unsupported is not None or self.old_weights_in_tree:
            return  # Its KV may be of more than its tokens, or of other weights.
        life.captured = True
        wanted = life.wish.makes_donor(self._settings)
        if self._donors.kept is None and self._self_test.passed:
            if wanted:
                self._cached_lately.append((life, read_slots, False))
            return
        tokens = tokens_to_keep(life, self._settings, self._page_size)
        if tokens is None:
            return
        if wanted or self._self_test.wants_prompts:
            contain("the self-test", self._prove, tokens, read_slots)
        if self._donors.kept is not None:  # A copy is made now: the tree may lose it. All ranks are asked.
            self._donors.add(life, tokens, read_slots, wanted=wanted)
        elif wanted:
            self._cached_lately.append((life, read_slots, True))

    def _make_donor(self, life: SglangLife, read_slots: Callable[[], Tensor], has_proved: bool) -> None:
        """Behind its first token: to make the ids of all its tokens takes a while, and so does the self-test."""
        tokens = tokens_to_keep(life, self._settings, self._page_size)
        if tokens is None:
            return
        if not has_proved:
            contain("the self-test", self._prove, tokens, read_slots)
        self._donors.add(life, tokens, read_slots)

    def _prove(self, tokens: TokenIds, read_slots: Callable[[], Tensor]) -> None:
        found = self._pool.test_keys(self._proof, lambda: read_slots()[: tokens.size], tokens)
        if found is not None:
            self._hear(found)
