"""What every tier offers to the placement of donors."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from semblend_core.contract import TokenIds
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store.kv_spec import KvSpec, LayerTensors
from semblend_core.kv.store.side_stream import SideStream, copy_layers
from semblend_core.kv.store.vocabulary import DonorKey, Quarantine, StoreDecline, StoreFaultError, Tier

Fill: TypeAlias = Callable[[Sequence[LayerTensors], SideStream], None]
"""Puts a donor's bytes into memory: issues the copies on the stream. Raises CorruptDonorError for a damaged file."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A donor on its way into a tier."""

    key: DonorKey
    spec: KvSpec
    token_ids: TokenIds | None
    fill: Fill
    layers: Sequence[LayerTensors] | None
    """Its layers where they are in memory already; None for a donor on disk."""
    after: object = None
    """A mark of the work that makes the source; None when it is whole."""
    born: int = 0
    """When the donor was captured, in nanoseconds since 1970."""
    given: DonorKv | None = None
    """Its tensors, where they are the store's to keep: a tier of the same memory need not copy them."""


class FragmentedError(Exception):
    """There is room, but not in one piece: evict one more and try again."""


class StorageTier(ABC):
    """Holds bytes. Knows nothing of budgets, pins or visibility."""

    tier: Tier

    def __init__(self) -> None:
        self.moving = threading.RLock()
        """Held while a donor comes in, copy and write included: by background threads only, the faster tier first."""
        self.prepare: Callable[[], StoreDecline | None] = lambda: None
        """Called, under ``moving``, before a donor comes in; may say why none can."""

    @abstractmethod
    def charge(self, source_key: DonorKey, spec: KvSpec, token_ids: TokenIds | None) -> int:
        """Bytes that a donor takes of this tier's budget."""

    @abstractmethod
    def write(self, source: Source) -> object:
        """Take a donor in and return its storage once the bytes are durable here. Background threads only."""

    @abstractmethod
    def discard(self, storage: object, *, scrub: bool = False) -> None:
        """Free a storage that nobody reads. ``scrub``: memory that others will be lent is overwritten first."""

    def set_aside(self, storage: object, reason: Quarantine) -> None:
        """Keep damaged bytes for a look, where they can be damaged."""
        raise NotImplementedError

    def holds(self, spec: KvSpec) -> bool:
        """Whether a donor of this shape can lie here when nothing else does."""
        return True


def fill_from(layers: Sequence[LayerTensors]) -> Fill:
    return lambda target, side: copy_layers(layers, target)


def out_of_memory(error: BaseException) -> StoreFaultError | None:
    """The fault if ``error`` says that memory ran out."""
    told = str(error).lower()
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "out of memory" in told or "allocate" in told:
        return StoreFaultError(StoreDecline.OUT_OF_MEMORY, str(error))
    return None
