"""Two checkpoints are never taken for one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from semblend_core import identity_of_weights


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_what_stays_as_it_is_keeps_its_identity(checkpoint: Path) -> None:
    before = identity_of_weights(checkpoint)
    (checkpoint / "README.md").write_text("says nothing of the weights")
    assert identity_of_weights(str(checkpoint)) == identity_of_weights(checkpoint, "commit") == before


@pytest.mark.parametrize("change", ["touched", "longer", "another config", "another part", "a part in a folder"])
def test_what_is_replaced_has_another_identity(checkpoint: Path, change: str) -> None:
    weights, before = checkpoint / "model.safetensors", identity_of_weights(checkpoint)
    if change == "touched":
        os.utime(weights, ns=(1, 1))
    elif change == "longer":
        state = weights.stat()
        weights.write_bytes(b"more weights")
        os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    elif change == "another config":
        (checkpoint / "config.json").write_text('{"rope_theta": 1}')
    elif change == "another part":
        (checkpoint / "more.pt").write_bytes(b"")
    else:
        (checkpoint / "shards").mkdir()
        (checkpoint / "shards/0.bin").write_bytes(b"")
    assert identity_of_weights(checkpoint) != before


def test_a_single_file_is_told_by_itself(checkpoint: Path) -> None:
    file = checkpoint / "model.gguf"
    file.write_bytes(b"weights")
    before = identity_of_weights(file)
    (checkpoint / "config.json").write_text("changed")
    assert identity_of_weights(file) == before
    os.utime(file, ns=(1, 1))
    assert identity_of_weights(file) != before


def test_a_name_at_a_hub_is_told_by_the_revision_it_stood_for() -> None:
    assert identity_of_weights("somebody/some-model", "1a2b") == "1a2b"


def test_what_nothing_tells_is_never_the_same_twice(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for place in ("somebody/some-model", tmp_path):
        assert identity_of_weights(place) != identity_of_weights(place)
