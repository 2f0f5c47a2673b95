"""One socket of one process, and the thread that answers there."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semblend_core.control.folder import SUFFIX, ControlFolderError, prepared
from semblend_core.settings import Settings

logger = logging.getLogger(__name__)

LONGEST_QUESTION = 64 * 1024
QUESTION_TIMEOUT_S = 5.0
"""A client that says nothing for so long is let go."""


class ControlServer:
    """Answers one question per connection, one after another. Errors are answers too: the thread outlives them."""

    def __init__(self, folder: Path, role: str, answer: Callable[[Any], dict[str, Any]]) -> None:
        """``role``: what kind of process this is. ControlFolderError where the folder cannot be used."""
        self.path = prepared(folder) / f"{role}-{os.getpid()}{SUFFIX}"
        self._answer = answer
        self._socket = socket.socket(socket.AF_UNIX)
        self.path.unlink(missing_ok=True)
        try:
            self._socket.bind(str(self.path))
        except OSError as error:
            self._socket.close()
            raise ControlFolderError(
                f"SEMBLEND_CONTROL_DIR={str(folder)!r} cannot hold a socket ({error}): choose a shorter path"
            ) from error
        self.path.chmod(0o600)
        self._socket.listen(8)
        self._thread = threading.Thread(target=self._serve, name="semblend-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Idempotent."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # Closed.
            with connection, contextlib.suppress(OSError):
                connection.settimeout(QUESTION_TIMEOUT_S)
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
    read = b""
    while not read.endswith(b"\n") and len(read) < LONGEST_QUESTION:
        part = connection.recv(4096)
        if not part:
            break
        read += part
    return read
