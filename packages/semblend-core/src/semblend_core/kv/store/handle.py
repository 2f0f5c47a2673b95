"""A donor in use."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from semblend_core.kv.store.budget import Copy
from semblend_core.kv.store.kv_spec import KvSpec


class StoredKv:
    """A donor, pinned: it is neither evicted nor freed before ``release``. Use it as a context manager."""

    __slots__ = ("_pin", "_unpin", "key", "spec", "tier")

    def __init__(self, copy: Copy, unpin: Callable[[Copy], None]) -> None:
        self.key = copy.entry.key
        self.spec: KvSpec = copy.entry.spec
        self.tier = copy.tier
        """Where its bytes lie for as long as this handle is held."""
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
