"""A file of lines that rotates by size and never holds two lines glued together."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows; there one writer per file is the user's care
    fcntl = None  # type: ignore[assignment]


_STANDARD = {"/dev/stdout": 1, "/dev/stderr": 2}
"""The process's own streams. Opened anew by name, a file behind one would have two writers that overwrite each other,
a socket could not be opened at all, and a rotation would carry off the engine's log."""


class RotatingFile:
    """Appends whole lines to ``path`` and keeps ``backups`` older files as ``path.1`` (newest) and so on.

    ``/dev/stdout`` and ``/dev/stderr`` are the process's own: shared with whatever else it writes, and never rotated.

    Not thread-safe: one thread owns it. Opened on the first write and again after any error, so it picks up
    where the disk, the directory or the file itself came back. The directory is never created: one that
    disappeared is usually a mount that is missing.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int, backups: int) -> None:
        self.path = Path(path)
        self.max_bytes = max_bytes
        self.backups = backups
        self._fd: int | None = None
        self._size = 0
        self._regular = True
        self._torn = False
        """The file ends inside a line, which the next write has to end first."""

    def write(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        """Append ``lines``, each with its newline: how many are whole on file, and what stopped the rest."""
        done = 0
        try:
            self._open_if_moved()
            while done < len(lines):
                count = self._fitting(lines[done:])
                if count == 0:
                    self._rotate()
                    continue
                done += self._append(lines[done : done + count])
        except _Torn as torn:
            self.close()
            return done + torn.whole_lines, torn.cause
        except OSError as error:
            self.close()
            return done, error
        return done, None

    def close(self) -> None:
        """Let go of the file. A later write opens it again."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        with contextlib.suppress(OSError):
            # A forked child may still hold the descriptor, and with it the lock, if we only closed ours.
            if fcntl is not None:
                fcntl.flock(fd, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            os.close(fd)

    def abandon(self) -> None:
        """Drop the descriptor in a forked child, without touching the lock that the parent goes on using."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _open_if_moved(self) -> None:
        # A removed file can be written to for ever without an error, so the name is looked up each time.
        if self._fd is not None and not self._same_file(self._fd):
            self.close()
        if self._fd is None:
            self._open()

    def _same_file(self, fd: int) -> bool:
        try:
            return not self._regular or os.path.samestat(os.fstat(fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _open(self) -> None:
        shared = _STANDARD.get(str(self.path))
        if shared is not None:
            self._fd, self._regular = os.dup(shared), False
            return
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            self._regular = stat.S_ISREG(os.fstat(fd).st_mode)
            if self._regular:
                _lock(fd, self.path)
                self._size = os.fstat(fd).st_size
                self._torn = self._size > 0 and os.pread(fd, 1, self._size - 1) != b"\n"
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _fitting(self, lines: Sequence[bytes]) -> int:
        """How many of ``lines`` fit before the next rotation; one longer than a file gets its own."""
        if not self._regular:
            return 1  # others may write to a device or pipe in between: only a short write is sure to stay whole
        room = self.max_bytes - self._size - self._torn
        for count, line in enumerate(lines):
            room -= len(line)
            if room < 0:
                return count if count or self._size else 1
        return len(lines)

    def _append(self, lines: Sequence[bytes]) -> int:
        assert self._fd is not None
        data = (b"\n" if self._torn else b"") + b"".join(lines)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            raise self._torn_after(data, written, error) from error
        self._size += written
        self._torn = False
        return len(lines)

    def _torn_after(self, data: bytes, written: int, cause: OSError) -> _Torn:
        """Cut the file back to its last whole line. Where that fails, the next write ends the torn one."""
        assert self._fd is not None
        whole = data.rfind(b"\n", 0, written) + 1
        already = self._torn and whole > 0
        self._torn = written > whole or (self._torn and whole == 0)
        with contextlib.suppress(OSError):
            # Only if the file is as long as our own writes make it: what somebody else appended is theirs.
            if self._regular and written > whole and os.fstat(self._fd).st_size == self._size + written:
                os.ftruncate(self._fd, self._size + whole)
        return _Torn(data.count(b"\n", 0, whole) - already, cause)

    def _rotate(self) -> None:
        # Behind a link the file itself moves; the link then leads to the new one.
        current = Path(os.path.realpath(self.path))
        if self.backups == 0:
            current.unlink(missing_ok=True)
        for number in range(self.backups, 0, -1):
            older = backup_path(current, number)
            newer = backup_path(current, number - 1) if number > 1 else current
            # A crash between two renames leaves a gap in the numbers, which moves on and falls out.
            with contextlib.suppress(FileNotFoundError):
                os.replace(newer, older)
        # Only now: until here the lock has kept every other writer out.
        self.close()
        self._open()


def backup_path(path: Path, number: int) -> Path:
    """Where rotation ``number`` (1 is the newest) of ``path`` lies."""
    return path.with_name(f"{path.name}.{number}")


class _Torn(Exception):  # noqa: N818 - a signal from one method to its caller, not an error of its own
    """A write stopped in the middle."""

    def __init__(self, whole_lines: int, cause: OSError) -> None:
        super().__init__(str(cause))
        self.whole_lines = whole_lines
        self.cause = cause


def _lock(fd: int, path: Path) -> None:
    """Refuse a file that another writer holds: two writers would rotate each other's lines away."""
    if fcntl is None:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        why = "another process or log writes this file: put {pid} into SEMBLEND_AUDIT_PATH"
        raise OSError(errno.EBUSY, why, str(path)) from None
    except OSError:
        # Some network file systems know no locks. One writer per file is then the user's care.
        return
