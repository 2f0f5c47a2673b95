"""What the tool says about itself: one line per step, with the time it took."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import BinaryIO

HEARTBEAT_SECONDS = 20.0

# Where this thread's lines go; None for the terminal.
_words: ContextVar[BinaryIO | None] = ContextVar("words", default=None)


@contextmanager
def saying_into(file: BinaryIO) -> Iterator[None]:
    """Lines of this thread go into the file, between the output of the commands that it starts."""
    token = _words.set(file)
    try:
        yield
    finally:
        _words.reset(token)


def say(message: str) -> None:
    """Print one line of our own."""
    tell(f"[run] {message}")


def tell(line: str) -> None:
    """Print a line. Flushed, so that it stays in order with the output of child processes."""
    file = _words.get()
    if file is None:
        print(line, flush=True)
    else:
        file.write(f"{line}\n".encode())
        file.flush()


def complain(message: str) -> None:
    if _words.get() is not None:
        say(f"error: {message}")
        return
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
