"""SGLang is what it was when the adapter was made for it, or nothing is reused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from semblend_core.pins import changes_since
from semblend_sglang.compat import versions
from semblend_sglang.compat.hooks import all_hooks
from semblend_sglang.compat.relied import RELIED

WRITE = "python3 tools/run.py pins semblend-sglang"


def test_this_sglang_is_as_it_was_pinned() -> None:
    pins, root = RELIED.pins_of(str(versions.installed_version())), RELIED.installed_in()
    assert pins is not None, WRITE
    assert root is not None
    assert changes_since(pins, root) == []
    assert changes_since(replace(pins, files={}), root) == [], "parsed, not only compared byte by byte"


def test_what_is_relied_upon_exists_in_some_supported_version() -> None:
    known = [pins for version in versions.KNOWN_VERSIONS if (pins := RELIED.pins_of(version)) is not None]
    assert len(known) == len(versions.KNOWN_VERSIONS), WRITE
    for pins in known:
        assert set(pins.sources) == set(RELIED.sources), WRITE
        assert set(pins.fields) == set(RELIED.fields), WRITE
    assert [name for name in RELIED.sources if all(pins.sources[name] is None for pins in known)] == []
    assert [name for name in RELIED.fields if all(pins.fields[name] is None for pins in known)] == []


def test_everything_that_is_hooked_is_pinned() -> None:
    assert set(all_hooks()) <= set(RELIED.sources)


@pytest.fixture
def with_a_new_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """As if SGLang's batches had held less when the adapter was made for it."""
    name = "sglang.srt.managers.schedule_batch.ScheduleBatch"
    pins = RELIED.pins_of(str(versions.installed_version()))
    assert pins is not None
    fields = [field for field in pins.fields[name] or () if field != "extend_lens"]
    replace(pins, files={}, fields={**pins.fields, name: fields}).save(tmp_path)
    monkeypatch.setattr(versions, "RELIED", replace(RELIED, folder=tmp_path))
    return f"{name} has other fields (extend_lens)"


def test_a_field_that_nobody_knew_of_is_refused(with_a_new_field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = versions.why_changed()
    assert said is not None
    assert with_a_new_field in said
    assert "SEMBLEND_SGLANG_FORCE_VERSION=1" in said
    monkeypatch.setenv("SEMBLEND_SGLANG_FORCE_VERSION", "1")
    assert versions.why_changed() is None
