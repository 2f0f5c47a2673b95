"""What is remembered of a request between SGLang's calls, from its first question to the release of its memory."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from semblend_core import Outcome, SemanticPrefixResult
from semblend_core.serving import Namespaces, RequestBook, Wish
from semblend_core.serving.tree import TreeDonor, TreeLife

LONGEST_KEY = 4096
"""Characters. Donors are found in SGLang's tree by their key, so it is kept with each; clients choose its length."""
FORGOTTEN_AFTER_S = 600.0
"""A waiting request that SGLang has not asked about for so long has left the queue in a way nobody told."""


ELASTIC_SIZE = re.compile(r"\|?elastic_ep_size=\d+$")
"""What SGLang appends to ``extra_key`` where its expert parallelism is elastic."""


@dataclass(frozen=True, slots=True)
class TreeKey:
    """Under which name SGLang's exact cache keeps a request, besides its tokens."""

    extra_key: str | None
    """Includes the adapter's id: SGLang appends it."""
    cache_salt: str | None = None
    lora_id: str | None = field(default=None, compare=False)

    @property
    def is_short(self) -> bool:
        return len(self.extra_key or "") + len(self.cache_salt or "") <= LONGEST_KEY

    @property
    def salt(self) -> str | None:
        """Whose request it is, for the namespace: ``cache_salt``, or without it the client's ``extra_key``."""
        return self.cache_salt or self._of_client or None

    @property
    def adapter(self) -> str | None:
        """For the namespace: what SGLang tells apart besides. The client's part may be a salt, so it is hashed."""
        of_client = self._of_client
        hashed = hashlib.blake2b(of_client.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        beside = "" if not of_client else f"#{hashed}" if self.cache_salt else "#"  # Where it is no salt already.
        return (self.extra_key or "").removeprefix(of_client) + beside or None

    @property
    def _of_client(self) -> str:
        """The part of ``extra_key`` that came with the request."""
        without_size = ELASTIC_SIZE.sub("", self.extra_key or "")
        return without_size.removesuffix(self.lora_id or "")


@dataclass(frozen=True, slots=True)
class Asked:
    """One question of SGLang's: what its own cache holds of a request that waits."""

    request: Any
    """SGLang's own object."""
    key: TreeKey
    exact_tokens: int
    """What the exact cache covers on the device."""
    unsupported: str | None = None
    """Why nothing may be reused for this request."""
    unsettled: bool = False
    """SGLang's own cache has more of it off the device, or may yet bring more: nothing is promised in this round."""


@dataclass(eq=False)
class SglangLife(TreeLife):
    key: TreeKey = field(kw_only=True)
    alias: SemanticPrefixResult | None = None
    """Tokens under which the exact cache is asked instead."""
    alias_tokens: int = 0
    """Of its own, behind the exact ones, that KV of other tokens stands for."""
    retracted: bool = False
    """SGLang took its memory away while it was answered. It goes on from its lineage, as far as that is there."""
    unasked: bool = False
    """The last round had no time left to look it up for the first time."""
    donors: dict[str, TreeDonor] = field(default_factory=dict)
    """Of its claim, as all ranks were told of them. One rank alone knows them anyway."""
    sent: set[str] = field(default_factory=set)
    """Donors that every rank has sent for, or tried to."""
    saved_skip_insert: bool | None = None
    """SGLang's own do-not-publish switch, as it was before SemBlend set it."""

    @property
    def is_approximate(self) -> bool:
        """Its memory holds relocated KV: nothing of it may enter the exact tree."""
        return self.approximate_from is not None

    def forbid_insert(self) -> None:
        """Set SGLang's switch; it is put back when the request's memory is released."""
        if self.saved_skip_insert is None:
            self.saved_skip_insert = bool(self.request.skip_radix_cache_insert)
        self.request.skip_radix_cache_insert = True

    def restore_insert(self) -> None:
        if self.saved_skip_insert is not None:
            self.request.skip_radix_cache_insert = self.saved_skip_insert
        self.saved_skip_insert, self.approximate_from = None, None


class SglangRequests(RequestBook[SglangLife]):
    """Ids come from clients: one may return with another prompt before the first has ended."""

    def __init__(
        self,
        namespaces: Namespaces,
        report: Callable[[Outcome], None] = lambda outcome: None,
        give_back: Callable[[SglangLife], None] = lambda life: None,
        now: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        super().__init__(report, give_back)
        self.namespaces, self._now = namespaces, now
        self._seen: dict[str, float] = {}
        """When SGLang last asked about each waiting request, the longest ago first."""

    def of_request(self, request: Any) -> SglangLife | None:
        return self.of(request, request.rid)

    @property
    def waiting(self) -> set[str]:
        return {life.request_id for life in self if life.is_queued}

    def follow(self, asked: Asked, meet: Callable[[SglangLife], None] = lambda life: None) -> SglangLife | None:
        """The life of the request that is asked about. One that was not seen before is given to ``meet``.

        None while another request with the same id is computed: its KV must not be taken for this one's. None for one
        whose client gave it an empty id: nothing could be told of it.
        """
        request_id = asked.request.rid
        if not request_id:
            return None
        life = self._lives.get(request_id)
        if life is not None and life.request is not asked.request:
            if not life.is_queued:
                return None
            self.end(life)
            life = None
        if life is None:
            self._forget_unseen()
            life = self._begin(asked)
            meet(life)
        if life.is_queued:
            self._seen.pop(request_id, None)
            self._seen[request_id] = self._now()
        return life

    def leave_queue(self, request_id: str) -> None:
        """It waits no longer and was not admitted. One that is computed already ends with the release of its memory."""
        life = self._lives.get(request_id)
        if life is not None and life.is_queued:
            self.end(life)

    def end(self, life: SglangLife, *, loading: bool = True) -> None:
        life.restore_insert()
        self._seen.pop(life.request_id, None)
        super().end(life, loading=loading)

    def _begin(self, asked: Asked) -> SglangLife:
        request, retracted = asked.request, bool(asked.request.output_ids)
        life = SglangLife(
            request,
            request.rid,
            self.namespaces.of(asked.key.adapter, asked.key.salt),
            request.origin_input_ids + request.output_ids if retracted else request.origin_input_ids,
            Wish.among(request.sampling_params.custom_params) if asked.key.is_short else Wish("off", capture=False),
            key=asked.key,
            retracted=retracted,
            captured=retracted,  # It was decided on when its prompt was computed first.
        )
        self.add(life)
        return life

    def _forget_unseen(self) -> None:
        """Requests that left the queue unseen must not pin donors."""
        horizon = self._now() - FORGOTTEN_AFTER_S
        while self._seen:
            request_id, seen = next(iter(self._seen.items()))
            if seen > horizon:
                break
            self.leave_queue(request_id)
            self._seen.pop(request_id, None)
