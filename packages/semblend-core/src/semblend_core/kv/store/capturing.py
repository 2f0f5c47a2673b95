"""A donor's way into the store: checked, announced, and copied behind into the first tier that takes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from semblend_core.contract import Namespace, as_token_ids
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store.budget import Entry
from semblend_core.kv.store.holdings import Holdings
from semblend_core.kv.store.kv_spec import KvSpec, layers_of
from semblend_core.kv.store.lane import Job, Lane
from semblend_core.kv.store.placement import Placement
from semblend_core.kv.store.side_stream import Mark, mark_caller
from semblend_core.kv.store.tier import Source, fill_from
from semblend_core.kv.store.vocabulary import DonorKey, PutResult, StoreDecline, Tier


@dataclass(frozen=True, slots=True)
class Told:
    """Whom to tell, on a background thread, what became of an accepted donor."""

    on_durable: Callable[[str], None] | None = None
    on_declined: Callable[[str, StoreDecline], None] | None = None


class Capturing:
    """``tiers``: the fastest first, each with its lane."""

    def __init__(
        self,
        holdings: Holdings,
        placement: Placement,
        tiers: Collection[Tier],
        lanes: Mapping[Tier, Lane],
        device: torch.device,
    ) -> None:
        self._holdings, self._placement, self._tiers, self._lanes = holdings, placement, tiers, lanes
        self._device = device

    def begin(
        self,
        namespace: Namespace,
        donor_id: str,
        kv: DonorKv,
        token_ids: Sequence[int] | npt.NDArray[np.integer] | None,
        told: Told,
        *,
        first: Tier | None,
        give: bool,
        saved_ms: float,
    ) -> PutResult:
        """``first``: the fastest tier that may hold it; None: any. For the others see ``DonorStore.put``."""
        entry, reason = self._entry_for(namespace, donor_id, kv, token_ids)
        entry.saved_ms = saved_ms
        tiers = self._tiers_for(entry, first)
        if reason is None:
            reason = self._holdings.announce(entry) if tiers else StoreDecline.TOO_LARGE
        if reason is not None:
            self._holdings.decline(reason)
            return PutResult(reason)
        job = Job(
            partial(self._copy, entry, kv, mark_caller(kv.keys), give, tiers, told),
            partial(self._holdings.withdraw, entry, StoreDecline.CLOSED),
            entry.spec.nbytes,
        )
        if self._lanes[tiers[0]].submit(job):
            return PutResult()
        reason = StoreDecline.CLOSED if self._holdings.closed else StoreDecline.QUEUE_FULL
        self._holdings.withdraw(entry, reason)
        return PutResult(reason)

    def _entry_for(
        self,
        namespace: Namespace,
        donor_id: str,
        kv: DonorKv,
        token_ids: Sequence[int] | npt.NDArray[np.integer] | None,
    ) -> tuple[Entry, StoreDecline | None]:
        spec = KvSpec.of(kv)
        entry = Entry(DonorKey(namespace.digest, donor_id), spec, None)
        elsewhere = kv.keys.device.type == "cuda" and kv.keys.device != self._device
        if not donor_id or not spec.storable or elsewhere:
            return entry, StoreDecline.INVALID_KV
        try:
            entry.token_ids = None if token_ids is None else as_token_ids(token_ids)
        except ValueError:
            return entry, StoreDecline.INVALID_KV
        fits = entry.token_ids is None or entry.token_ids.size == spec.tokens
        return entry, None if fits else StoreDecline.INVALID_KV

    def _tiers_for(self, entry: Entry, first: Tier | None) -> list[Tier]:
        allowed = list(Tier)[0 if first is None else list(Tier).index(first) :]
        return [
            tier
            for tier in self._tiers
            if tier in allowed and entry.spec.storable and self._placement.fits_ever(tier, entry)
        ]

    def _copy(self, entry: Entry, kv: DonorKv, after: Mark, give: bool, tiers: list[Tier], told: Told) -> None:
        """On the lane of the first tier: the first tier that takes the donor has it."""
        reason: StoreDecline | None = StoreDecline.COPY_FAILED
        source = _source(entry, kv, after, give)
        if not self._holdings.is_coming(entry):
            tiers, reason = [], StoreDecline.FORGOTTEN
        for tier in tiers:
            reason = self._placement.admit(tier, entry, source)
            if reason in (None, StoreDecline.FORGOTTEN):
                break
        if reason is not None:
            self._holdings.withdraw(entry, reason)
            if told.on_declined is not None:
                self._placement.tell(partial(told.on_declined, entry.key.donor_id, reason))
        elif told.on_durable is not None:
            self._placement.tell(partial(told.on_durable, entry.key.donor_id))


def _source(entry: Entry, kv: DonorKv, after: Mark, give: bool) -> Source:
    layers, given = layers_of(kv), kv if give else None
    return Source(entry.key, entry.spec, entry.token_ids, fill_from(layers), layers, after, entry.born, given)
