"""A snapshot brings the same donors back, and a file that is not whole is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from semblend_core.contract import TokenIds
from semblend_core.donors import DonorRegistry, SnapshotError, restore_snapshot, save_snapshot


def text(seed: int, size: int = 100) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 2**31 - 1, size).astype(np.int32)


def filled(donors: int = 5) -> DonorRegistry:
    registry = DonorRegistry()
    for number in range(donors):
        registry.register("ab"[number % 2], f"donor-{number} é\ud800", text(number, 50 + number))
    return registry


def contents(registry: DonorRegistry) -> list[tuple[str, str, list[int]]]:
    return [(record.namespace, record.donor_id, tokens.tolist()) for record, tokens in registry.export()]


def test_what_was_saved_comes_back_in_the_same_order(tmp_path: Path) -> None:
    original = filled()
    first = original.export()[0][0].serial
    original.unpin(original.pin([first]) or [])  # Now the most recently used.
    assert save_snapshot(original, tmp_path / "donors") == 5
    restored = DonorRegistry()
    assert restore_snapshot(restored, tmp_path / "donors") == 5
    assert contents(restored) == contents(original)
    restored.check_integrity()
    assert restored.find("a", text(2, 52), 31, None)


def test_an_empty_registry_makes_an_empty_snapshot(tmp_path: Path) -> None:
    assert save_snapshot(DonorRegistry(), tmp_path / "donors") == 0
    assert restore_snapshot(DonorRegistry(), tmp_path / "donors") == 0


def test_saving_replaces_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    save_snapshot(filled(2), tmp_path / "donors")
    save_snapshot(filled(4), tmp_path / "donors")
    assert [each.name for each in tmp_path.iterdir()] == ["donors"]
    assert restore_snapshot(DonorRegistry(), tmp_path / "donors") == 4


def test_only_donors_that_are_still_kept_come_back(tmp_path: Path) -> None:
    save_snapshot(filled(), tmp_path / "donors")
    restored = DonorRegistry()
    asked: list[tuple[str, str]] = []

    def still_kept(namespace: str, donor_id: str) -> bool:
        asked.append((namespace, donor_id))
        return namespace == "a"

    assert restore_snapshot(restored, tmp_path / "donors", still_kept) == 3
    assert len(asked) == 5
    assert {record.namespace for record, _ in restored.export()} == {"a"}


def test_a_smaller_budget_keeps_the_most_recent(tmp_path: Path) -> None:
    save_snapshot(filled(), tmp_path / "donors")
    restored = DonorRegistry(max_donors=2)
    restore_snapshot(restored, tmp_path / "donors")
    assert contents(restored) == contents(filled())[-2:]
    restored.check_integrity()


def test_donors_that_are_known_already_are_not_counted(tmp_path: Path) -> None:
    registry = filled()
    save_snapshot(registry, tmp_path / "donors")
    assert restore_snapshot(registry, tmp_path / "donors") == 0
    assert len(registry) == 5


def test_a_truncated_snapshot_is_refused_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "donors"
    save_snapshot(filled(2), path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        registry = DonorRegistry()
        with pytest.raises(SnapshotError, match=r"donors.*delete it to start empty"):
            restore_snapshot(registry, path)
        assert len(registry) == 0


def test_a_damaged_byte_anywhere_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "donors"
    save_snapshot(filled(2), path)
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(SnapshotError, match=r"damaged|not a donor snapshot"):
            restore_snapshot(DonorRegistry(), path)


def test_another_version_or_another_file_is_not_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "donors"
    for content in (b"", b"semblend-donors-v2\n" + b"x" * 100, b"{}"):
        path.write_bytes(content)
        with pytest.raises(SnapshotError, match="not a donor snapshot of this version"):
            restore_snapshot(DonorRegistry(), path)
    with pytest.raises(FileNotFoundError):
        restore_snapshot(DonorRegistry(), tmp_path / "absent")


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "donors"
    save_snapshot(filled(2), path)

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("semblend_core.donors.snapshot.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_snapshot(filled(4), path)
    assert [each.name for each in tmp_path.iterdir()] == ["donors"]
    assert restore_snapshot(DonorRegistry(), path) == 2


SAVE_FOR_EVER = """
import sys
import numpy as np
from semblend_core.donors import DonorRegistry, save_snapshot
registry = DonorRegistry()
for number in range(200):
    tokens = np.random.default_rng(number).integers(0, 50000, 2000)
    registry.register("a", str(number), tokens.astype(np.int32))
while True:
    save_snapshot(registry, sys.argv[1])
    print("saved", flush=True)
"""


def test_a_process_killed_while_saving_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "donors"
    for number in range(3):
        process = subprocess.Popen([sys.executable, "-c", SAVE_FOR_EVER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(2 + number):
            assert process.stdout.readline() == "saved\n"
        time.sleep(0.003 * number)  # Die at another moment of the next save each time.
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        registry = DonorRegistry()
        assert restore_snapshot(registry, path) == 200
        registry.check_integrity()
