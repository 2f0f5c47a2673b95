"""A real process stands in for apt-get: it writes down how it was called, and may put a program on the path."""

import os
from pathlib import Path
from typing import Any

import pytest

from semblend_tools import environments, system_packages
from semblend_tools.system_packages import provide
from semblend_tools.test_command import Choice
from semblend_tools.test_command import test as run_tests

PROGRAM = "a-program-nobody-has"


class Apt:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "apt.log"

    def put(self, *, brings: bool, update_fails: bool = False) -> None:
        program = self.folder / PROGRAM
        bring = f'printf "#!/bin/sh\\n" > {program} && chmod +x {program}' if brings else ":"
        update = "exit 100" if update_fails else "exit 0"
        script = f'#!/bin/sh\necho "$DEBIAN_FRONTEND $*" >> {self.log}\n[ "$1" = update ] && {update}\n{bring}\n'
        (self.folder / "apt-get").write_text(script)
        (self.folder / "apt-get").chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Apt:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return Apt(folder)


def test_what_is_missing_is_installed_by_root_and_said(workspace: Any, apt: Apt, capfd: Any) -> None:
    apt.put(brings=True)
    assert provide(workspace.clone, [PROGRAM]) is True
    assert apt.calls == [
        "noninteractive update -qq",
        f"noninteractive install -y -qq --no-install-recommends {PROGRAM}",
    ]
    assert f"installing the system packages that the tests use: {PROGRAM}" in capfd.readouterr().out


def test_a_program_may_have_another_name_than_its_package(workspace: Any, apt: Apt) -> None:
    apt.put(brings=True)
    assert provide(workspace.clone, ["shell-of-debian:sh"]) is True
    assert apt.calls == []
    assert provide(workspace.clone, [f"package-of-it:{PROGRAM}"]) is True
    assert apt.calls[-1].endswith(" package-of-it")


def test_what_is_there_is_left_alone(workspace: Any, apt: Apt, capfd: Any) -> None:
    apt.put(brings=False)
    assert provide(workspace.clone, ["sh"]) is True
    assert provide(workspace.clone, []) is True
    assert apt.calls == []
    assert capfd.readouterr().out == ""


def test_without_root_nothing_is_installed_and_the_command_is_shown(
    workspace: Any, apt: Apt, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt.put(brings=True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert provide(workspace.clone, [PROGRAM]) is False
    assert apt.calls == []
    assert f"sudo apt-get install -y --no-install-recommends {PROGRAM}" in capfd.readouterr().out


def test_without_apt_the_command_is_shown(workspace: Any, apt: Apt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(apt.folder))
    assert system_packages.may_install() is False
    assert provide(workspace.clone, [PROGRAM]) is False


@pytest.mark.parametrize("failure", [{"brings": False}, {"brings": True, "update_fails": True}])
def test_an_installation_that_fails_is_said_and_fails_nothing(
    workspace: Any, apt: Apt, capfd: Any, failure: dict[str, bool]
) -> None:
    apt.put(**failure)
    assert provide(workspace.clone, [PROGRAM]) is False
    assert f"without {PROGRAM} the tests that need it are skipped" in capfd.readouterr().out


def test_a_package_has_them_before_its_tests_run(
    workspace: Any, apt: Apt, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt.put(brings=True)
    workspace.add("semblend-core", settings=f'[tool.semblend]\ntest-system-packages = ["{PROGRAM}"]')
    workspace.write(
        "packages/semblend-core/tests/test_it.py",
        f"import shutil\ndef test_it():\n    assert shutil.which({PROGRAM!r})\n",
    )
    workspace.pretend_environment("test")
    monkeypatch.setattr(environments, "ensure", lambda environment: None)
    assert run_tests(workspace.clone, Choice(("semblend-core",), engines=False)) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "1 passed, 0 failed"
