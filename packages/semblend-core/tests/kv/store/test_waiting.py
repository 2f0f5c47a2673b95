"""An idle engine lets the store's threads get on with what they copy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from semblend_core import Namespace
from semblend_core.kv.store import DonorStore


def test_a_short_wait_ends_when_copies_do_or_when_its_time_is_up(
    kit: Any, open_store: Callable[..., DonorStore], namespace: Namespace
) -> None:
    store = open_store(host_bytes=1 << 20)
    copied, may_end = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        copied.set()
        may_end.wait()

    assert store.wait_briefly(600.0), "nothing is under way"
    assert store.put(namespace, "d", kit.kv(), on_durable=hold).accepted
    copied.wait()
    assert not store.wait_briefly(0.001)
    may_end.set()
    assert store.wait_briefly(600.0)
