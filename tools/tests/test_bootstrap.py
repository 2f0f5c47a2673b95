import ast
import fcntl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from semblend_tools import bootstrap, environments
from semblend_tools.clone import Clone
from semblend_tools.locking import environments_locked


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def succeed(*_: Any, **__: Any) -> None:
    return None


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: Any) -> Clone:
    """A clone where making a virtual environment is quick, because it makes only the file that we look at."""

    def create(folder: Path, **_: Any) -> None:
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").touch()

    monkeypatch.setattr(bootstrap.venv, "create", create)
    return Clone(tmp_path)


def test_an_interrupted_tool_environment_is_made_anew(clone: Clone, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(bootstrap, "call_or_fail", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bootstrap.tool_python(clone)
    half_made = clone.tools / "hatch-venv" / "half-made"
    half_made.touch()
    monkeypatch.setattr(bootstrap, "call_or_fail", succeed)
    assert bootstrap.tool_python(clone).exists()
    assert not half_made.exists()
    assert "was interrupted: making it anew" in capsys.readouterr().out


def test_a_finished_tool_environment_is_used_again(clone: Clone, monkeypatch: Any) -> None:
    monkeypatch.setattr(bootstrap, "call_or_fail", succeed)
    bootstrap.tool_python(clone)
    monkeypatch.setattr(bootstrap.venv, "create", interrupt)
    bootstrap.tool_python(clone)


def test_other_pins_make_it_anew(clone: Clone, monkeypatch: Any) -> None:
    monkeypatch.setattr(bootstrap, "call_or_fail", succeed)
    bootstrap.tool_python(clone)
    monkeypatch.setattr(bootstrap, "TOOL_PINS", ("hatch==0.0.0",))
    monkeypatch.setattr(bootstrap.venv, "create", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bootstrap.tool_python(clone)


def test_an_interrupted_environment_leaves_no_stamp(with_our_hatch: Any, monkeypatch: Any) -> None:
    workspace = with_our_hatch
    workspace.add("semblend-core")
    workspace.pretend_environment("test")
    monkeypatch.setattr(environments, "call", succeed)
    monkeypatch.setattr(environments, "call_or_fail", interrupt)
    environment = environments.shared(workspace.clone, "test")
    with pytest.raises(KeyboardInterrupt):
        environments.ensure(environment)
    assert not environment.stamp.exists()


def test_a_second_run_waits_for_the_first(tmp_path: Path, capsys: Any) -> None:
    clone = Clone(tmp_path)
    clone.tools.mkdir()
    with (clone.tools / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        entered = threading.Event()

        def second_run() -> None:
            with environments_locked(clone):
                entered.set()

        thread = threading.Thread(target=second_run)
        thread.start()
        assert not entered.wait(0.3)
        fcntl.flock(held, fcntl.LOCK_UN)
        thread.join(timeout=10)
    assert entered.is_set()
    assert "waiting for another run" in capsys.readouterr().out


def test_every_cache_lies_in_the_clone(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("SEMBLEND_CACHE_DIR", raising=False)
    monkeypatch.setenv("HATCH_ENV_ACTIVE", "another")
    variables = Clone(tmp_path).child_environment()
    for name in (
        "HATCH_CONFIG",
        "HATCH_DATA_DIR",
        "HATCH_CACHE_DIR",
        "PIP_CACHE_DIR",
        "UV_CACHE_DIR",
        "SEMBLEND_MODEL_CACHE",
    ):
        assert Path(variables[name]).is_relative_to(tmp_path), name
    assert "HATCH_ENV_ACTIVE" not in variables


def test_an_older_python_can_read_the_script_and_is_told_what_to_install(real_clone: Clone) -> None:
    script = real_clone.root / "tools" / "run.py"
    ast.parse(script.read_text(), feature_version=(3, 4))
    pretend = f"import runpy, sys; sys.version_info = (3, 8, 1); runpy.run_path({str(script)!r})"
    done = subprocess.run([sys.executable, "-c", pretend], capture_output=True, text=True)
    assert done.returncode == 2
    assert "needs Python 3.11 or newer" in done.stderr
