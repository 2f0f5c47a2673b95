"""vLLM is what it was when the adapter was tested with it, or nothing is reused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semblend_core.pins import changes_since
from semblend_vllm.compat import versions
from semblend_vllm.compat.relied import RELIED


def test_this_vllm_is_as_it_was_pinned() -> None:
    pins, root = RELIED.pins_of(str(versions.installed_version())), RELIED.installed_in()
    assert pins is not None, "python3 tools/run.py pins semblend-vllm"
    assert root is not None
    assert changes_since(pins, root) == []
    assert changes_since(replace(pins, files={}), root) == [], "parsed, not only compared byte by byte"


def test_what_is_relied_upon_exists_in_some_supported_version() -> None:
    known = [pins for version in versions.TESTED_VERSIONS if (pins := RELIED.pins_of(version)) is not None]
    assert len(known) == len(versions.TESTED_VERSIONS)
    for pins in known:
        assert set(pins.sources) == set(RELIED.sources), "python3 tools/run.py pins semblend-vllm"
        assert set(pins.fields) == set(RELIED.fields), "python3 tools/run.py pins semblend-vllm"
    assert [name for name in RELIED.sources if all(pins.sources[name] is None for pins in known)] == []
    assert [name for name in RELIED.fields if all(pins.fields[name] is None for pins in known)] == []


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One function of this vLLM is another than the pinned one. Returns its name."""
    pins, name = RELIED.pins_of(str(versions.installed_version())), RELIED.sources[0]
    assert pins is not None
    replace(pins, files={}, sources={**pins.sources, name: "another"}).save(tmp_path)
    monkeypatch.setattr(versions, "RELIED", replace(RELIED, folder=tmp_path))
    return name


def test_a_changed_vllm_runs_without_reuse_and_the_log_says_why_and_what_to_do(
    changed: str, new_overlapping: Callable[..., Any], answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "semblend_vllm"):
        engine = new_overlapping()
    (error,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert changed in error
    assert str(versions.installed_version()) in error
    assert "SEMBLEND_VLLM_FORCE_VERSION=1" in error
    assert engine.side is None
    request = engine.add(list(range(100, 300)))
    engine.finish()
    assert engine.answers[request.request_id] == answer(list(range(100, 300)), 4)


def test_a_version_that_was_never_tested_runs_without_reuse_too(
    new_overlapping: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(versions, "installed_version", lambda: "0.99.1")
    with caplog.at_level(logging.ERROR, "semblend_vllm"):
        engine = new_overlapping()
    assert engine.side is None
    assert "never tested with vLLM 0.99.1" in caplog.text
    assert "Install vLLM 0.26.0, " in caplog.text
    assert " or 0.32.0 as released" in caplog.text


def test_both_can_be_tried_at_ones_own_risk(
    changed: str,
    new_overlapping: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SEMBLEND_VLLM_FORCE_VERSION", "1")
    with caplog.at_level(logging.WARNING, "semblend_vllm"):
        engine = new_overlapping()
    assert engine.side is not None
    assert f"at your own risk (SEMBLEND_VLLM_FORCE_VERSION): {changed}" in caplog.text
