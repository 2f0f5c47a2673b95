"""One run at a time may change the environments of a clone."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from semblend_tools.clone import Clone
from semblend_tools.progress import say


@contextmanager
def environments_locked(clone: Clone) -> Iterator[None]:
    """Hold the clone's lock. The kernel releases it when the process dies, so it can never go stale."""
    clone.tools.mkdir(parents=True, exist_ok=True)
    with (clone.tools / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another run to finish setting up its environments ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
