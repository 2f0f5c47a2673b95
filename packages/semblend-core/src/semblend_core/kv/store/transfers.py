"""A donor's KV on its way to where the engine computes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store.side_stream import Mark, is_done, wait
from semblend_core.kv.store.vocabulary import DonorKey, StoreDecline, TransferFailedError, TransferPendingError


class Transfer:
    """Made by ``DonorStore.load``. Only ``result`` waits.

    Two ways to use it. On the device: ``wait_on_stream`` makes a stream wait, whole or layer by layer, then ``parts``
    may be read on that stream. On the host: poll ``done``, or call ``result``. From disk the bytes are verified before
    any stream may wait for them, so poll ``issued`` or ``done`` first.
    """

    def __init__(self, key: DonorKey) -> None:
        self.key = key
        self.failed: StoreDecline | None = None
        """Why nothing will come; None while it may, or did."""
        self._parts: tuple[DonorKv, ...] = ()
        self._owners: tuple[Tensor, ...] = ()
        self._layer_marks: tuple[Mark, ...] = ()
        self._settled = threading.Event()

    @property
    def issued(self) -> bool:
        """Whether a stream can be made to wait for the bytes."""
        return self._settled.is_set() and self.failed is None

    @property
    def parts(self) -> tuple[DonorKv, ...]:
        """One per wanted range, in their order. Their bytes are there for a stream that waited."""
        self._require_issued()
        return self._parts

    def done(self) -> bool:
        """Landed or failed. Never waits."""
        return self.failed is not None or self.ready()

    def ready(self) -> bool:
        """All bytes have landed. Never waits."""
        return self.issued and all(is_done(mark) for mark in self._layer_marks[-1:])

    def wait_on_stream(self, stream: Any = None, layer: int | None = None) -> None:
        """Make ``stream`` (default: the current one) wait for ``layer``, or for all of them. Never waits itself.

        TransferPendingError while a disk read is under way, TransferFailedError when nothing will come.
        """
        self._require_issued()
        if not self._owners or self._owners[0].device.type != "cuda":
            return
        stream = stream or torch.cuda.current_stream(self._owners[0].device)
        wanted = self._layer_marks[-1:] if layer is None else self._layer_marks[layer : layer + 1]
        for mark in wanted:
            if mark is not None:
                stream.wait_event(mark)
        self._used_on(stream)

    def result(self, timeout: float | None = None) -> tuple[DonorKv, ...]:
        """Wait for all bytes and return the parts. TransferFailedError, or TimeoutError."""
        if not self._settled.wait(timeout):
            raise TimeoutError(f"the KV of donor {self.key.donor_id!r} did not arrive within {timeout} s")
        self._require_issued()
        for mark in self._layer_marks[-1:]:
            wait(mark)
        if self._owners[0].device.type == "cuda":
            self._used_on(torch.cuda.current_stream(self._owners[0].device))
        return self._parts

    def issue(self, parts: tuple[DonorKv, ...], owner: DonorKv, layer_marks: Sequence[Mark]) -> None:
        """The store's part: the copies are issued; ``layer_marks`` are done in order."""
        self._parts = parts
        self._owners = (owner.keys,) if owner.values is None else (owner.keys, owner.values)
        self._layer_marks = tuple(layer_marks)
        self._settled.set()

    def fail(self, reason: StoreDecline) -> None:
        self.failed = reason
        self._settled.set()

    def _used_on(self, stream: Any) -> None:
        # The memory belongs to the store's stream: its next owner must wait for this reader too.
        for tensor in self._owners:
            tensor.record_stream(stream)

    def _require_issued(self) -> None:
        if self.failed is not None:
            raise TransferFailedError(self.key, self.failed)
        if not self._settled.is_set():
            raise TransferPendingError(f"donor {self.key.donor_id!r} is still being read: poll done() first")
