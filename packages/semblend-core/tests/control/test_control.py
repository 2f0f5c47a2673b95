"""An operator asks running engines over sockets that only their owner may use. Errors say what to do."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semblend_core import Settings, TenantReport, tenant_of_salt
from semblend_core.control import (
    ControlError,
    ControlServer,
    NoTurnError,
    TenantCommands,
    Turns,
    ask_engines,
    asked_of_engines,
    client,
    open_control,
)
from semblend_core.control import (
    server as server_module,
)

TENANT = tenant_of_salt("salt")
Serve = Callable[..., ControlServer]


class Holder:
    """Holds so many donors of each tenant until they are purged."""

    def __init__(self, donors: int = 3) -> None:
        self.donors = {TENANT: donors}

    def purge(self, tenant: str) -> TenantReport:
        return TenantReport(donors=self.donors.pop(tenant, 0))

    def show(self, tenant: str) -> TenantReport:
        return TenantReport(donors=self.donors.get(tenant, 0))

    @property
    def commands(self) -> TenantCommands:
        return TenantCommands(self.purge, self.show)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "control"


@pytest.fixture
def serve(folder: Path) -> Iterator[Serve]:
    servers: list[ControlServer] = []

    def start(answer: Callable[[Any], dict[str, Any]], role: str = "scheduler") -> ControlServer:
        servers.append(ControlServer(folder, role, answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def command(*arguments: str, salt: str = "salt", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "semblend_core.control", *arguments],
        input=salt,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_a_purge_is_carried_out_by_all_and_looked_at_again(serve: Serve, folder: Path) -> None:
    scheduler, worker = Holder(3), Holder(2)
    serve(scheduler.commands)
    serve(worker.commands, "worker-0")
    told = asked_of_engines(folder, "purge", TENANT)
    assert [name.rpartition("-")[0] for name in told["engines"]] == ["scheduler", "worker-0"]
    assert [each["donors"] for each in told["engines"].values()] == [3, 2]
    assert told["verified"]
    assert asked_of_engines(folder, "show", TENANT)["engines"].popitem()[1]["donors"] == 0


def test_what_is_left_after_a_purge_is_told(serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SECOND_LOOK_S", 0.2)
    holder = Holder(3)
    serve(TenantCommands(holder.show, holder.show))
    told = asked_of_engines(folder, "purge", TENANT)
    assert not told["verified"]
    assert told["left"]["donors"] == 3


def test_only_the_owner_may_use_it(serve: Serve, folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    server = serve(Holder().commands)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700, "it was open to others, and is ours"
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600


def test_a_folder_of_somebody_else_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(ValueError, match=r"SEMBLEND_CONTROL_DIR.*open to others.*chmod 700"):
        ControlServer(folder, "scheduler", Holder().commands)
    assert open_control(Settings(control_dir=str(folder)), "scheduler", Holder().commands) is None


def test_no_folder_no_socket(folder: Path) -> None:
    assert open_control(Settings(), "scheduler", Holder().commands) is None
    with pytest.raises(ControlError, match="is not there: no engine was started with it"):
        ask_engines(folder, "show", TENANT)
    folder.mkdir()
    with pytest.raises(ControlError, match="no engine runs with"):
        ask_engines(folder, "show", TENANT)


def test_a_path_that_is_too_long_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose a shorter path"):
        ControlServer(tmp_path / ("x" * 120), "scheduler", Holder().commands)


def test_a_socket_of_a_process_that_was_killed_is_cleared_away(serve: Serve, folder: Path) -> None:
    holder = Holder()
    serve(holder.commands)
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(folder / "scheduler-1.sock"))
    dead.close()
    assert len(ask_engines(folder, "show", TENANT)) == 1
    assert not (folder / "scheduler-1.sock").exists()


def test_an_engine_that_does_not_answer_is_named(serve: Serve, folder: Path) -> None:
    go_on = threading.Event()
    server = serve(lambda _: {"late": go_on.wait(60)})
    with pytest.raises(ControlError, match=f"{server.path.stem} did not answer within 0.05 s"):
        ask_engines(folder, "show", TENANT, timeout=0.05)
    go_on.set()


@pytest.mark.parametrize(
    "question",
    [
        b"",
        b"\n",
        b"not json\n",
        b"[]\n",
        b'{"command": ["purge"]}\n',
        b'{"command": "purge"}\n',
        b'{"command": "purge", "tenant": "salt"}\n',
        b'{"command": "purge", "tenant": null}\n',
        b'{"command": "erase", "tenant": "0123456789abcdef"}\n',
        b"x" * 70_000 + b"\n",
    ],
)
def test_what_is_not_understood_is_an_error_and_the_next_is_answered(
    serve: Serve, folder: Path, question: bytes
) -> None:
    holder = Holder()
    server = serve(holder.commands)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server.path))
        connection.sendall(question)
        connection.shutdown(socket.SHUT_WR)
        answer = json.loads(connection.makefile().readline())
    assert set(answer) == {"error"}
    assert "salt" not in answer["error"] or "stand for a salt" in answer["error"]
    assert ask_engines(folder, "show", TENANT).popitem()[1]["donors"] == 3


def test_a_failure_inside_is_told_without_its_text(serve: Serve, folder: Path) -> None:
    def fail(tenant: str) -> TenantReport:
        raise RuntimeError("a prompt")

    serve(TenantCommands(fail, fail))
    with pytest.raises(ControlError, match=r"failed inside SemBlend \(RuntimeError\)") as raised:
        ask_engines(folder, "show", TENANT)
    assert "a prompt" not in str(raised.value)


def test_the_command_reads_the_salt_from_standard_input_or_a_file(serve: Serve, folder: Path, tmp_path: Path) -> None:
    holder = Holder()
    serve(holder.commands)
    shown = command("show", "--dir", str(folder))
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["engines"].popitem()[1]["donors"] == 3
    (tmp_path / "salt").write_text("salt\n")
    purged = command("purge", "--salt-file", str(tmp_path / "salt"), salt="", SEMBLEND_CONTROL_DIR=str(folder))
    assert purged.returncode == 0, purged.stderr
    assert json.loads(purged.stdout)["verified"]
    assert holder.donors == {}


def test_the_command_says_what_is_wrong(folder: Path) -> None:
    for arguments, salt, says in (
        (("show", "--dir", str(folder)), "salt", "no engine was started with it"),
        (("show",), "salt", "--dir"),
        (("purge", "--dir", str(folder)), "", "--unsalted"),
        (("show", "--salt-file", str(folder / "none")), "", "No such file"),
    ):
        failed = command(*arguments, salt=salt, SEMBLEND_CONTROL_DIR="")
        assert failed.returncode == 1
        assert says in failed.stderr
        assert failed.stdout == ""


def test_the_id_of_a_tenant_needs_no_engine() -> None:
    assert command("id").stdout.strip() == TENANT
    assert command("id", "--unsalted").stdout.strip() == tenant_of_salt(None)


def test_work_waits_for_the_scheduler_and_the_scheduler_for_nobody() -> None:
    turns, results = Turns(), []
    turns.take()
    caller = threading.Thread(target=lambda: results.append(turns.call(threading.get_ident, 60)))
    caller.start()
    while not results:
        turns.take()
    caller.join()
    assert results == [threading.get_ident()]


def test_what_the_scheduler_does_not_come_to_is_not_done_later() -> None:
    turns, done = Turns(), []
    with pytest.raises(NoTurnError, match="is it paused"):
        turns.call(lambda: done.append(1), 0.01)
    turns.take()
    assert done == []


def test_an_error_is_raised_where_it_was_asked_for() -> None:
    turns, raised = Turns(), []

    def fail() -> None:
        raise KeyError("x")

    def ask() -> None:
        try:
            turns.call(fail, 60)
        except KeyError as error:
            raised.append(error)

    caller = threading.Thread(target=ask)
    caller.start()
    while not raised:
        turns.take()
    caller.join()


def test_engines_with_one_process_number_are_all_asked(serve: Serve, folder: Path) -> None:
    """As in two containers that share the folder, or in one process that runs two engines."""
    holders = [Holder(3), Holder(2)]
    servers = [serve(holder.commands) for holder in holders]
    assert asked_of_engines(folder, "purge", TENANT)["verified"]
    assert [holder.donors for holder in holders] == [{}, {}]
    servers[0].close()
    assert len(ask_engines(folder, "show", TENANT)) == 1, "who ends takes its own socket along"


def test_a_socket_has_its_name_only_when_it_listens(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that comes too soon would take it for what a killed process left, and delete it."""
    seen: list[list[Path]] = []
    listen = socket.socket.listen

    class Early(socket.socket):
        def listen(self, *args: Any) -> None:
            seen.append(client.sockets_in(folder))
            listen(self, *args)

    monkeypatch.setattr(socket, "socket", Early)
    serve(Holder().commands)
    assert seen == [[]]
    assert ask_engines(folder, "show", TENANT)


def test_more_commands_at_once_than_can_wait_are_all_answered(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MOST_WAITING", 1)
    go_on = threading.Event()
    serve(lambda asked: {"waited": go_on.wait(10)})
    told: list[Any] = []
    threads = [threading.Thread(target=lambda: told.append(ask_engines(folder, "show", TENANT))) for _ in range(8)]
    for thread in threads:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(told) == 8


def test_an_engine_that_dies_while_it_is_asked_keeps_nobody_from_asking_the_others(serve: Serve, folder: Path) -> None:
    holder = Holder()
    serve(holder.commands, "worker-0")
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(folder / "scheduler-1.sock"))
        dying.listen()

        def reset() -> None:
            connection, _ = dying.accept()
            connection.recv(1)
            connection.close()  # With something unread.

        threading.Thread(target=reset).start()
        with pytest.raises(ControlError, match=r"scheduler-1 could not be asked.*did its engine just end"):
            ask_engines(folder, "purge", TENANT)
    assert not holder.donors


def test_a_client_that_asks_letter_by_letter_is_let_go(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "QUESTION_TIMEOUT_S", 0.3)
    server = serve(Holder().commands)
    ended = threading.Event()

    def drip() -> None:
        with socket.socket(socket.AF_UNIX) as slow, contextlib.suppress(OSError):
            slow.connect(str(server.path))
            while not ended.wait(0.05):
                slow.send(b" ")

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        assert ask_engines(folder, "show", TENANT, timeout=5.0)
    finally:
        ended.set()
        dripping.join()


def test_too_many_open_files_are_outlived(serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()
    accept = socket.socket.accept

    class Full(socket.socket):
        def accept(self) -> Any:
            if not failed.is_set():
                failed.set()
                raise OSError(errno.EMFILE, "Too many open files")
            return accept(self)

    monkeypatch.setattr(socket, "socket", Full)
    serve(Holder().commands)
    assert failed.wait(5)
    assert ask_engines(folder, "show", TENANT, timeout=5.0)
