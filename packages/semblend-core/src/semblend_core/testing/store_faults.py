"""What can befall a donor store on disk while an engine serves. Each holds as long as its ``with`` block lasts."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

Fault = Callable[[Path], AbstractContextManager[None]]
A_YEAR_S = 365 * 24 * 3600


@contextmanager
def disk_full(folder: Path) -> Iterator[None]:
    """No file can grow beyond 4 KiB, in the whole process."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def permission_lost(folder: Path) -> Iterator[None]:
    """Nothing in ``folder`` can be opened. The system asks no superuser for permission, so this refuses instead."""
    really = os.open

    def refusing(path: Any, *arguments: Any, **more: Any) -> int:
        if isinstance(path, str | os.PathLike) and folder in Path(path).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return really(path, *arguments, **more)

    with mock.patch.object(os, "open", refusing):
        yield


@contextmanager
def donors_damaged(folder: Path) -> Iterator[None]:
    """Half of the bytes of every donor are zeros. That is not mended."""
    for path in folder.rglob("*.safetensors"):
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(size // 4)
            file.write(bytes(size // 2))
    yield


@contextmanager
def disk_hangs(folder: Path) -> Iterator[None]:
    """Who reads waits until the block has ended."""
    really, over = os.preadv, threading.Event()

    def waiting(*arguments: Any) -> int:
        over.wait()
        return really(*arguments)

    with mock.patch.object(os, "preadv", waiting):
        try:
            yield
        finally:
            over.set()


@contextmanager
def no_memory(folder: Path) -> Iterator[None]:
    """For what is read from the store."""
    import torch

    from semblend_core.kv.store import kv_spec

    def failing(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory, by a test")

    with mock.patch.object(kv_spec, "torch", SimpleNamespace(**vars(torch) | {"empty": failing})):
        yield


def _clock_jumps(seconds: int) -> Fault:
    now, now_ns = time.time, time.time_ns

    def later() -> float:
        return now() + seconds

    def later_ns() -> int:
        return now_ns() + seconds * 10**9

    @contextmanager
    def jumped(folder: Path) -> Iterator[None]:
        with mock.patch.object(time, "time", later), mock.patch.object(time, "time_ns", later_ns):
            yield

    return jumped


@contextmanager
def signals(folder: Path) -> Iterator[None]:
    """One every few milliseconds, wherever the main thread is. Call it there."""
    came = 0

    def count(*_: Any) -> None:
        nonlocal came
        came += 1

    before = signal.signal(signal.SIGALRM, count)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    try:
        yield
        while not came:  # What was tried was over before the first.
            signal.pause()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


STORE_FAULTS: Mapping[str, Fault] = {
    "disk full": disk_full,
    "permission lost": permission_lost,
    "donors damaged": donors_damaged,
    "disk hangs": disk_hangs,
    "no memory": no_memory,
    "clock jumps ahead": _clock_jumps(A_YEAR_S),
    "clock jumps back": _clock_jumps(-A_YEAR_S),
    "signals": signals,
}
"""By name. Each is given the folder of the store."""


def open_files() -> int:
    """How many files, sockets and pipes this process holds."""
    return len(os.listdir("/proc/self/fd"))
