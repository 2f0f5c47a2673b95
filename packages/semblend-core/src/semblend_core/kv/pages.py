"""Pages of KV as files: one file per page, checked whenever it is read, within a budget of bytes.

A file appears under its name only when it is whole, so the process may be killed at any time. Nothing is synced: a page
that a power failure has cut short fails its check, and is a miss like one that was never there.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
import threading
import time
import uuid
import zlib
from collections import OrderedDict
from pathlib import Path

from semblend_core.private_folder import make_private

logger = logging.getLogger(__name__)

_HEADER = struct.Struct("<4s20sQI")
"""Magic, digest of the key, length of the page, checksum of the page."""
_MAGIC = b"SBP1"
_PAGE, _PART = ".page", ".part"
_ABANDONED_AFTER_S = 600.0
"""A part that nobody has written to for so long was left by a process that is gone."""


class PageFolder:
    """Least recently used pages go first, also across restarts. Any thread may call anything.

    Several processes may share a folder: a page has one content, whoever wrote it. Each counts what it has seen.
    """

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        self._folder, self._budget = folder, budget_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """By file name, the least recently used first."""
        self._bytes = 0
        self.damaged = 0
        """Pages that failed their check and were removed."""
        make_private(folder, "the folder of durable pages")
        self._take_stock()
        self._make_room(0)

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        return self._bytes

    def holds(self, key: str) -> bool:
        return (self._folder / _name(key)).exists()

    def write(self, key: str, page: memoryview) -> bool:
        """Whether the page is on disk now. One that is there already is not written again."""
        name, size = _name(key), _HEADER.size + page.nbytes
        path = self._folder / name
        if path.exists():
            self._used(name, path)
            return True
        if not self._make_room(size):
            return False
        part = self._folder / f"{uuid.uuid4().hex}{_PART}"
        try:
            with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(_HEADER.pack(_MAGIC, _digest(key), page.nbytes, zlib.crc32(page)))
                file.write(page)
            part.replace(path)
        except OSError as error:
            logger.warning("a page could not be written to %s: %s", self._folder, error)
            part.unlink(missing_ok=True)
            return False
        self._count(name, size)
        return True

    def read(self, key: str, into: memoryview) -> bool:
        """Whether ``into`` holds the page now. Where not, its content is undefined and the page is no longer there."""
        name = _name(key)
        path = self._folder / name
        try:
            with open(path, "rb", opener=_open_page) as file:
                head, got, rest = file.read(_HEADER.size), file.readinto(into), file.read(1)
        except FileNotFoundError:
            self._uncount(name)
            return False
        except OSError as error:
            logger.warning("a page could not be read from %s: %s", self._folder, error)
            return False
        if rest or got != into.nbytes or head != _HEADER.pack(_MAGIC, _digest(key), got, zlib.crc32(into)):
            logger.error("a page in %s is damaged: it is removed and will be computed again", self._folder)
            self.damaged += 1
            self._remove(name)
            return False
        self._used(name, path)
        return True

    def clear(self) -> None:
        """Also of what other processes wrote."""
        for entry in os.scandir(self._folder):
            if entry.name.endswith((_PAGE, _PART)):
                self._remove(entry.name)

    # --- Books -----------------------------------------------------------------------------------------------------

    def _take_stock(self) -> None:
        found = []
        for entry in os.scandir(self._folder):
            with contextlib.suppress(FileNotFoundError):
                known = entry.stat(follow_symlinks=False)
                if entry.name.endswith(_PAGE):
                    found.append((known.st_mtime_ns, entry.name, known.st_size))
                elif entry.name.endswith(_PART) and known.st_mtime < time.time() - _ABANDONED_AFTER_S:
                    os.unlink(entry)
        for _, name, size in sorted(found):
            self._count(name, size)

    def _make_room(self, size: int) -> bool:
        """Whether ``size`` more bytes fit now."""
        if size > self._budget:
            return False
        while True:
            with self._lock:
                oldest = next(iter(self._sizes)) if self._bytes + size > self._budget else None
            if oldest is None:
                return True
            self._remove(oldest)

    def _used(self, name: str, path: Path) -> None:
        now = time.time_ns()  # The file system's own clock stands still for milliseconds, or longer on a busy host.
        with contextlib.suppress(OSError):
            os.utime(path, ns=(now, now))  # The order survives a restart.
            self._count(name, path.stat().st_size)

    def _count(self, name: str, size: int) -> None:
        with self._lock:
            self._bytes += size - self._sizes.pop(name, 0)
            self._sizes[name] = size

    def _uncount(self, name: str) -> None:
        with self._lock:
            self._bytes -= self._sizes.pop(name, 0)

    def _remove(self, name: str) -> None:
        self._uncount(name)
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()


def _open_page(path: str, flags: int) -> int:
    """No link, and nothing that waits for a writer."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=20).digest()


def _name(key: str) -> str:
    return _digest(key).hex() + _PAGE
