"""``semblend-trtllm`` completes a configuration, and says what contradicts it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from semblend_trtllm import launcher, preset


def test_help_says_what_it_changes_and_that_it_was_never_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        launcher.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for word in ("enable_block_reuse", "enable_partial_reuse", "--kv-events", "--print-config", "never run on"):
        assert word in said


@pytest.fixture(autouse=True)
def _without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith("SEMBLEND_"):
            monkeypatch.delenv(name)


def test_settings_reach_the_engines_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "extra.yaml"
    given.write_text("env_overrides:\n  SEMBLEND_CAPTURE: hinted\n  OTHER: '1'\n")
    monkeypatch.setenv("SEMBLEND_CAPTURE", "all")
    monkeypatch.setenv("SEMBLEND_SHARING", "all")
    monkeypatch.setenv("SOME_SECRET", "x")
    launcher.main(["--config", str(given), "--print-config"])
    told = yaml.safe_load(capsys.readouterr().out)["env_overrides"]
    assert told == {"SEMBLEND_CAPTURE": "hinted", "SEMBLEND_SHARING": "all", "OTHER": "1"}


def test_the_configuration_is_completed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "extra.yaml"
    given.write_text("kv_cache_config:\n  max_tokens: 1000\nmax_batch_size: 8\n")
    launcher.main(["--config", str(given), "--kv-events", "--print-config"])
    assert yaml.safe_load(capsys.readouterr().out) == {
        "kv_cache_config": {
            "max_tokens": 1000,
            "enable_block_reuse": True,
            "enable_partial_reuse": False,
            "event_buffer_max_size": preset.EVENTS,
        },
        "max_batch_size": 8,
        "kv_connector_config": preset.CONNECTOR,
    }


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kv_connector_config": {"connector": "lmcache"}}, "names another connector"),
        ({"kv_cache_config": {"enable_block_reuse": False}}, "enable_block_reuse is false"),
        ({"kv_cache_config": {"enable_partial_reuse": True}}, "enable_partial_reuse is true"),
        ({"scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"}}, "GUARANTEED_NO_EVICT"),
    ],
)
def test_contradictions_are_errors_that_name_the_fix(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    given = tmp_path / "extra.yaml"
    given.write_text(yaml.safe_dump(options))
    with pytest.raises(SystemExit, match=reason):
        launcher.main(["model", "--config", str(given)])


@pytest.mark.parametrize(("content", "reason"), [(None, "cannot be read"), ("- a\n- b", "no mapping"), ("{", "read")])
def test_files_that_are_no_configuration(tmp_path: Path, content: str | None, reason: str) -> None:
    given = tmp_path / "extra.yaml"
    if content is not None:
        given.write_text(content)
    with pytest.raises(SystemExit, match=reason):
        launcher.main(["model", "--config", str(given)])


def test_without_tensorrt_llm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "installed_version", lambda: None)
    with pytest.raises(SystemExit, match=r"semblend-trtllm\[trtllm\]"):
        launcher.main(["model"])


def test_the_server_gets_its_own_arguments_and_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process: what stands in for the server writes down what it was started with."""
    server = tmp_path / "trtllm-serve"
    server.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nfor last; do :; done\ncp "$last" {tmp_path}/file\n'
    )
    server.chmod(server.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(launcher, "installed_version", lambda: "1.3.0")
    process = os.fork()
    if process == 0:
        try:
            launcher.main(["my/model", "--port", "8001"])
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert (tmp_path / "arguments").read_text().startswith("my/model --port 8001 --config ")
    assert yaml.safe_load((tmp_path / "file").read_text())["kv_connector_config"] == preset.CONNECTOR
