"""Versions, the launcher, and the call that earlier integrations made."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import semblend_sglang
from semblend_sglang import legacy
from semblend_sglang.compat.versions import FORCE_SETTING, KNOWN_VERSIONS, why_refused
from semblend_sglang.launcher import with_backend


@pytest.mark.parametrize("version", KNOWN_VERSIONS)
def test_known_versions_are_accepted(version: str) -> None:
    assert why_refused(version) is None


@pytest.mark.parametrize("version", ["0.5.16", "0.5.24", "0.6.0"])
def test_other_versions_are_refused_with_the_reason(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORCE_SETTING, raising=False)
    said = why_refused(version)
    assert said is not None
    assert version in said
    assert FORCE_SETTING in said
    monkeypatch.setenv(FORCE_SETTING, "1")
    assert why_refused(version) is None


def test_the_extra_installs_known_versions_only() -> None:
    extra = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    (wanted,) = extra["optional-dependencies"]["sglang"]
    allowed = SpecifierSet(wanted.removeprefix("sglang"))
    assert [v for n in range(10, 40) if (v := f"0.5.{n}") in allowed] == list(KNOWN_VERSIONS)


def test_a_missing_engine_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORCE_SETTING, raising=False)
    assert "pip install 'semblend-sglang[sglang]'" in str(why_refused(None))


def test_the_launcher_adds_the_flag_and_passes_the_rest_through() -> None:
    assert with_backend(["--model-path", "m", "--tp", "1"]) == [
        *("--model-path", "m", "--tp", "1"),
        *("--radix-cache-backend", "semblend"),
    ]
    chosen = ["--radix-cache-backend", "semblend", "--port", "1"]
    assert with_backend(chosen) == chosen
    assert with_backend(["--radix-cache-backend=semblend"]) == ["--radix-cache-backend=semblend"]


@pytest.mark.parametrize("arguments", [["--radix-cache-backend", "other"], ["--radix-cache-backend=other"]])
def test_the_launcher_refuses_another_backend(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="other"):
        with_backend(arguments)


@pytest.mark.parametrize(("version", "says"), [("0.4.0", "does nothing"), (None, "install")])
def test_the_old_call_says_loudly_where_it_can_do_nothing(
    version: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FORCE_SETTING, raising=False)
    monkeypatch.setattr(legacy, "installed_version", lambda: version)
    with pytest.warns(RuntimeWarning, match=says):
        assert not semblend_sglang.patch_radix_cache()
