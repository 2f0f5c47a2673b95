"""One socket of one process, and the thread that answers there."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semblend_core.control.folder import SUFFIX, ControlFolderError, prepared
from semblend_core.settings import Settings

logger = logging.getLogger(__name__)

LONGEST_QUESTION = 64 * 1024
QUESTION_TIMEOUT_S = 5.0
"""A client that has not asked for so long is let go: others wait behind it."""
MOST_WAITING = 128
"""Clients."""


class ControlServer:
    """Answers one question per connection, one after another. Errors are answers too: the thread outlives them."""

    def __init__(self, folder: Path, role: str, answer: Callable[[Any], dict[str, Any]]) -> None:
        """``role``: what kind of process this is. ControlFolderError where the folder cannot be used."""
        # Processes of two containers may have one number, and one process may run two engines.
        self.path = prepared(folder) / f"{role}-{os.getpid()}.{secrets.token_hex(4)}{SUFFIX}"
        self._answer, self._closed = answer, False
        self._socket = socket.socket(socket.AF_UNIX)
        # It gets its name when it listens: one that refuses is taken for what a killed process left.
        starting = self.path.with_suffix(".new")
        try:
            self._socket.bind(str(starting))
        except OSError as error:
            self._socket.close()
            raise ControlFolderError(
                f"SEMBLEND_CONTROL_DIR={str(folder)!r} cannot hold a socket ({error}): choose a shorter path"
            ) from error
        starting.chmod(0o600)
        self._socket.listen(MOST_WAITING)
        starting.rename(self.path)
        self._thread = threading.Thread(target=self._serve, name="semblend-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Idempotent."""
        self._closed = True
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # Closed; or the process has too many files open, and will have fewer.
                time.sleep(0.1)
                continue
            with connection, contextlib.suppress(OSError):
                answer = self._answered(_read_line(connection))
                connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answered(self, question: bytes) -> dict[str, Any]:
        try:
            return {"ok": self._answer(json.loads(question))}
        except json.JSONDecodeError:
            return {"error": "the question is not JSON"}
        except (ValueError, TimeoutError) as error:  # Ours, and they quote no salt.
            return {"error": str(error)}
        except Exception as error:
            logger.exception("a command of an operator's failed")
            return {"error": f"it failed inside SemBlend ({type(error).__name__}): see the engine's log"}


def open_control(settings: Settings, role: str, answer: Callable[[Any], dict[str, Any]]) -> ControlServer | None:
    """The socket that ``settings`` ask for; None where they ask for none, or it cannot be had, which is logged."""
    if not settings.control_dir:
        return None
    try:
        return ControlServer(Path(settings.control_dir), role, answer)
    except (OSError, ControlFolderError) as error:
        logger.error("tenants cannot be shown or purged in this engine: %s", error)
        return None


def _read_line(connection: socket.socket) -> bytes:
    read, until = b"", time.monotonic() + QUESTION_TIMEOUT_S
    while not read.endswith(b"\n") and len(read) < LONGEST_QUESTION:
        connection.settimeout(max(0.001, until - time.monotonic()))
        part = connection.recv(4096)
        if not part:
            break
        read += part
    return read
