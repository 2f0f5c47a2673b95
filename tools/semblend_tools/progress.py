"""What the tool says about itself: one line per step, with the time it took."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

HEARTBEAT_SECONDS = 20.0


def say(message: str) -> None:
    """Print one line of our own. Flushed, so that it stays in order with the output of child processes."""
    print(f"[run] {message}", flush=True)


def complain(message: str) -> None:
    sys.stdout.flush()
    print(f"[run] error: {message}", file=sys.stderr, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Announce a step, report now and then that it is still going, and say how long it took."""
    say(f"{what} ...")
    started = time.monotonic()
    finished = threading.Event()

    def heartbeat() -> None:
        while not finished.wait(HEARTBEAT_SECONDS):
            say(f"  still {what} ({time.monotonic() - started:.0f} s)")

    thread = threading.Thread(target=heartbeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
    say(f"  done in {time.monotonic() - started:.1f} s")
