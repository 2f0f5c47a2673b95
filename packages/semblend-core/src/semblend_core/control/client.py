"""Asking all engines whose sockets lie in a folder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from semblend_core.control.folder import sockets_in

ANSWER_TIMEOUT_S = 60.0
SECOND_LOOK_S = 5.0
"""How long a purge is looked at again while something is left."""
_COUNTED = ("donors", "stored", "bytes", "lineages", "captures", "openings", "comparisons")


class ControlError(RuntimeError):
    """No engine was reached, or one of them could not do it; says which and what to do."""


def ask_engines(
    folder: Path, command: str, tenant: str, timeout: float = ANSWER_TIMEOUT_S
) -> dict[str, dict[str, Any]]:
    """What each process answered, by its role and process id."""
    question = json.dumps({"command": command, "tenant": tenant}).encode() + b"\n"
    answers: dict[str, dict[str, Any]] = {}
    failures: list[str] = []
    for path in _sockets(folder):
        try:
            answer = _ask(path, question, timeout)
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                path.unlink()  # Its process was killed.
            continue
        except FileNotFoundError:
            continue  # Its process has just ended.
        except TimeoutError:
            failures.append(f"{path.stem} did not answer within {timeout:g} s: is the engine stuck?")
            continue
        except PermissionError:
            failures.append(f"{path} may not be used by user {os.geteuid()}: run this as the engine's user")
            continue
        except OSError as error:  # Of its own: the others are asked all the same.
            failures.append(f"{path.stem} could not be asked ({error.strerror}): did its engine just end?")
            continue
        if "ok" in answer:
            answers[path.stem] = answer["ok"]
        else:
            failures.append(f"{path.stem}: {answer.get('error')}")
    if failures:
        raise ControlError("; ".join(failures))
    if not answers:
        raise ControlError(f"no engine runs with SEMBLEND_CONTROL_DIR={str(folder)!r}: start one with it first")
    return answers


def asked_of_engines(folder: Path, command: str, tenant: str, timeout: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
    """One answer for all: each engine's, and for a purge whether a second look found nothing left."""
    answers = ask_engines(folder, command, tenant, timeout)
    told: dict[str, Any] = {"command": command, "tenant": tenant, "engines": answers}
    if command == "purge":
        told["left"] = _left(folder, tenant, timeout)
        told["verified"] = not any(told["left"].values())
    return told


def _left(folder: Path, tenant: str, timeout: float) -> dict[str, int]:
    """What is still held. A step that was under way may bring something, and the next one drops it."""
    until = time.monotonic() + SECOND_LOOK_S
    while True:
        held = ask_engines(folder, "show", tenant, timeout)
        left = {name: sum(each[name] for each in held.values()) for name in _COUNTED}
        if not any(left.values()) or time.monotonic() > until:
            return left
        time.sleep(0.1)


def _sockets(folder: Path) -> list[Path]:
    named = f"SEMBLEND_CONTROL_DIR={str(folder)!r}"
    try:
        return sockets_in(folder)
    except FileNotFoundError:
        raise ControlError(f"{named} is not there: no engine was started with it") from None
    except NotADirectoryError:
        raise ControlError(f"{named} is no folder") from None
    except PermissionError:
        raise ControlError(f"{named} may not be read by user {os.geteuid()}: run this as the engine's user") from None


def _ask(path: Path, question: bytes, timeout: float) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        _connect(connection, path, time.monotonic() + timeout)
        connection.sendall(question)
        read = b""
        while not read.endswith(b"\n"):
            part = connection.recv(65536)
            if not part:
                break
            read += part
    if not read.endswith(b"\n"):
        return {"error": "the engine ended before it had answered"}
    answer: dict[str, Any] = json.loads(read)
    return answer


def _connect(connection: socket.socket, path: Path, until: float) -> None:
    """Waits where many others do."""
    while True:
        try:
            connection.connect(str(path))
            return
        except BlockingIOError:  # The line before the engine is full.
            if time.monotonic() > until:
                raise TimeoutError from None
            time.sleep(0.05)
