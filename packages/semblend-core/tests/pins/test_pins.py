"""An engine that was changed under its version number is seen, whatever was changed, and never by running it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from semblend_core.pins import Pins, Relied, changes_since, take_pins, why_changed

SCHEDULER = '''\
"""A scheduler."""
raise RuntimeError("nobody may import this")

from dataclasses import dataclass


class Scheduler:
    """Schedules."""

    def __init__(self, limit, *, places=8):
        self.limit, self.places = limit, places
        if places:
            self.running: list = []

    @property
    def paused(self):
        return self._paused

    def schedule(self, tokens, *rest):
        """One step."""
        return min(tokens, self.limit)  # Never more.


@dataclass
class Output:
    tokens: int
    rows: tuple = ()
    """Of a step."""


class Block:
    __slots__ = ("block_id", "block_hash")


try:
    import fast
except ImportError:
    def convert(block_hash):
        return block_hash
'''
SOURCES = ("engine.core.scheduler.Scheduler.schedule", "engine.core.scheduler.Scheduler.paused")
FIELDS = (
    "engine.core.scheduler.Scheduler",
    "engine.core.scheduler.Scheduler.schedule",
    "engine.core.scheduler.Output",
    "engine.core.scheduler.Block",
    "engine.core.scheduler.convert",
)


@pytest.fixture
def relied(tmp_path: Path) -> Relied:
    return Relied("engine", ("engine-cpu", "engine"), tmp_path / "pins", SOURCES, FIELDS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    package = tmp_path / "site" / "engine"
    (package / "core").mkdir(parents=True)
    (package / "__init__.py").write_text('raise RuntimeError("nobody may import this")\n')
    (package / "core" / "scheduler.py").write_text(SCHEDULER)
    metadata = tmp_path / "site" / "engine_cpu-1.2.0+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: engine-cpu\nVersion: 1.2.0+cpu\n")
    return tmp_path / "site"


@pytest.fixture
def pins(relied: Relied, root: Path) -> Pins:
    return take_pins(relied, root, "1.2.0")


def change(root: Path, before: str, after: str) -> None:
    file = root / "engine" / "core" / "scheduler.py"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))


def test_fields_are_what_a_body_declares_what_init_sets_slots_and_parameters(pins: Pins) -> None:
    found = {name.rpartition(".")[2]: fields for name, fields in pins.fields.items()}
    assert found == {
        "Scheduler": ["limit", "places", "running"],
        "schedule": ["rest", "self", "tokens"],
        "Output": ["rows", "tokens"],
        "Block": ["block_hash", "block_id"],
        "convert": ["block_hash"],
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("  # Never more.", ""),
        ('"""One step."""', '"""A step."""\n'),
        ("min(tokens, self.limit)", "min(\n            tokens,\n            self.limit,\n        )"),
        ('    """Of a step."""\n', ""),
        ('"""A scheduler."""', "OTHER = 1"),
    ],
)
def test_comments_docstrings_formatting_and_what_is_not_pinned_do_not_count(
    pins: Pins, root: Path, before: str, after: str
) -> None:
    change(root, before, after)
    assert changes_since(pins, root) == []


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("min(tokens, self.limit)", "tokens", "Scheduler.schedule has another source"),
        ("    @property\n", "", "Scheduler.paused has another source"),
        ("def paused", "def is_paused", "Scheduler.paused is gone"),
        ("    rows: tuple", "    columns: int = 0\n    rows: tuple", "Output has other fields (columns)"),
        ("self.running", "self.waiting", "Scheduler has other fields (running, waiting)"),
        ('"block_hash")', '"block_hash", "group")', "Block has other fields (group)"),
        ("def convert(block_hash)", "def convert(block_hash, group)", "convert has other fields (group)"),
    ],
)
def test_a_change_is_told_by_name(pins: Pins, root: Path, before: str, after: str, told: str) -> None:
    change(root, before, after)
    assert changes_since(pins, root) == [f"engine.core.scheduler.{told}"]


def test_what_a_version_does_not_have_is_pinned_too(relied: Relied, root: Path) -> None:
    pins = take_pins(replace(relied, sources=("engine.core.scheduler.Scheduler.cancel",)), root, "1.2.0")
    assert pins.sources == {"engine.core.scheduler.Scheduler.cancel": None}
    change(root, "    def schedule", "    def cancel(self): ...\n\n    def schedule")
    assert changes_since(pins, root) == ["engine.core.scheduler.Scheduler.cancel is new"]


def test_a_file_that_is_gone_takes_all_its_names_along(pins: Pins, root: Path) -> None:
    (root / "engine" / "core" / "scheduler.py").unlink()
    assert len(changes_since(pins, root)) == len(SOURCES) + len(FIELDS)


def test_pins_are_kept_in_a_file_per_version(
    pins: Pins, relied: Relied, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins.save(relied.folder)
    assert relied.pins_of("1.2.0") == pins
    assert relied.version_in(root) == "1.2.0"
    monkeypatch.syspath_prepend(str(root))
    assert relied.installed_in() == root
    assert why_changed(relied, "1.2.0") is None
    assert "no pins for engine 1.3.0" in str(why_changed(relied, "1.3.0"))
    change(root, "min(tokens, self.limit)", "tokens")
    change(root, "self.running", "self.waiting")
    assert why_changed(relied, "1.2.0") == (
        "engine.core.scheduler.Scheduler.schedule has another source, and 1 more: "
        "this engine 1.2.0 was changed after its release"
    )
