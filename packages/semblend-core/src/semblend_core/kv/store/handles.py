"""What a caller holds of the store: a donor that is in it, and a copy under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store.budget import Copy
from semblend_core.kv.store.kv_spec import KvSpec
from semblend_core.kv.store.side_stream import Mark, is_done, wait
from semblend_core.kv.store.vocabulary import DonorKey, StoreDecline, TransferFailedError, TransferPendingError


class StoredKv:
    """A donor, pinned: it is neither evicted nor freed before ``release``. Use it as a context manager."""

    __slots__ = ("_pin", "_unpin", "key", "spec", "tier", "token_ids")

    def __init__(self, copy: Copy, unpin: Callable[[Copy], None]) -> None:
        self.key = copy.entry.key
        self.spec: KvSpec = copy.entry.spec
        self.tier = copy.tier
        """Where its bytes lie for as long as this handle is held."""
        self.token_ids = copy.entry.token_ids
        """Whose KV it is; None where nobody said."""
        self._pin = [copy]
        self._unpin = unpin

    def release(self) -> None:
        """Idempotent; from any thread. Loads under way keep their bytes themselves."""
        try:
            copy = self._pin.pop()
        except IndexError:
            return
        self._unpin(copy)

    def __enter__(self) -> StoredKv:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def pinned_copy(handle: StoredKv) -> Copy:
    """What the store keeps behind a handle. ValueError when it was released."""
    try:
        return handle._pin[0]
    except IndexError:
        raise ValueError("the handle was released: acquire the donor again") from None


class Transfer:
    """Made by ``DonorStore.load``. Only ``result`` and ``wait_briefly`` wait.

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

    def wait_briefly(self, seconds: float) -> None:
        """Until it is issued or has failed, at most so long."""
        self._settled.wait(seconds)

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
