"""Files that are not what was written are never served: they are set aside, and counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semblend_core import Namespace
from semblend_core.kv.store import DonorStore, Gone, StoreDecline, TransferFailedError
from semblend_core.kv.store.vocabulary import Quarantine

OpenStore = Callable[..., DonorStore]
MIB = 1024**2


class Files:
    """The folder of a store that was closed, with the donors ``a`` and ``whole`` in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def of(self, donor_id: str) -> tuple[Path, Path]:
        for metadata in (self.root / "donors").glob("*-*.json"):
            if json.loads(metadata.read_bytes())["donor"]["donor_id"] == donor_id:
                return metadata.with_suffix(".safetensors"), metadata
        raise LookupError(donor_id)

    @property
    def aside(self) -> list[Path]:
        return sorted((self.root / "quarantine").iterdir())


@pytest.fixture
def files(kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path) -> Files:
    store = open_store(disk_bytes=MIB)
    for name, seed in (("a", 1), ("whole", 2)):
        store.put(namespace, name, kit.kv(seed), token_ids=range(40))
    assert store.flush()
    assert store.close()
    return Files(tmp_path / "kv")


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << (offset % 8)
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


FOUND_AT_START: dict[str, tuple[Callable[[Path, Path], object], Quarantine]] = {
    "data truncated": (lambda data, meta: truncate(data), Quarantine.TRUNCATED),
    "data longer": (lambda data, meta: data.write_bytes(data.read_bytes() + b"x"), Quarantine.TRUNCATED),
    "data gone": (lambda data, meta: data.unlink(), Quarantine.MISSING_DATA),
    "header damaged": (lambda data, meta: flip(data, 20), Quarantine.MISMATCH),
    "metadata truncated": (lambda data, meta: truncate(meta), Quarantine.BAD_METADATA),
    "metadata empty": (lambda data, meta: meta.write_bytes(b""), Quarantine.BAD_METADATA),
    "metadata not ours": (lambda data, meta: meta.write_text("[1]"), Quarantine.BAD_METADATA),
    "metadata changed": (
        lambda data, meta: meta.write_text(meta.read_text().replace('"first_position":0', '"first_position":1')),
        Quarantine.BAD_METADATA,
    ),
    "another version": (lambda data, meta: rewrite(meta, format=99), Quarantine.WRONG_VERSION),
}


@pytest.mark.parametrize("damage", FOUND_AT_START)
def test_damage_that_recovery_finds(
    kit: Any, open_store: OpenStore, namespace: Namespace, files: Files, damage: str
) -> None:
    do, reason = FOUND_AT_START[damage]
    do(*files.of("a"))
    store = open_store(disk_bytes=MIB)
    assert [donor.donor_id for donor in store.recover()] == ["whole"]
    assert store.stats().quarantined == {reason: 1}
    assert files.aside
    assert all(f".{reason}." in path.name for path in files.aside)
    assert store.acquire(namespace, "a") is None
    assert kit.same(kit.read(store, namespace, "whole"), kit.kv(2))
    assert store.put(namespace, "a", kit.kv(3)).accepted, "the id is free again"
    assert store.flush()
    assert kit.same(kit.read(store, namespace, "a"), kit.kv(3))


def test_donors_of_an_earlier_version_are_removed_and_one_line_says_so(
    open_store: OpenStore, namespace: Namespace, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "whole"):
        rewrite(files.of(name)[1], format=1)
    store = open_store(disk_bytes=MIB)
    assert store.recover() == []
    assert store.acquire(namespace, "a") is None
    assert (list((files.root / "donors").iterdir()), files.aside, store.stats().quarantined) == ([], [], {})
    assert [record.message for record in caplog.records if record.name.startswith("semblend")] == [
        "SemBlend removed 2 donors of an earlier version: nothing tells their weights"
    ]


def test_the_metadata_of_another_donor_is_not_believed(open_store: OpenStore, files: Files) -> None:
    data, metadata = files.of("a")
    metadata.write_bytes(files.of("whole")[1].read_bytes())
    store = open_store(disk_bytes=MIB)
    assert [donor.donor_id for donor in store.recover()] == ["whole"]
    assert store.stats().quarantined == {Quarantine.MISMATCH: 1}
    assert not data.exists()


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.floats(0, 1, exclude_max=True))
def test_one_flipped_bit_anywhere_in_the_tensors_is_never_served(
    kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path, position: float
) -> None:
    gone: list[tuple[str, Gone]] = []
    with open_store(
        disk_bytes=MIB, store={"on_gone": lambda key, reason: gone.append((key.donor_id, reason))}
    ) as store:
        store.forget(namespace, "a")
        store.put(namespace, "a", kit.kv(1))
        assert store.flush()
        data, _ = Files(tmp_path / "kv").of("a")
        tensors = kit.kv(1).nbytes
        flip(data, data.stat().st_size - tensors + int(position * tensors))
        handle = store.acquire(namespace, "a")
        assert handle is not None
        with handle:
            transfer = store.load(handle)
            with pytest.raises(TransferFailedError) as failure:
                transfer.result(30)
        assert failure.value.reason is transfer.failed is StoreDecline.CORRUPT
        assert not store.contains(namespace, "a")
        assert gone == [("a", Gone.CORRUPT)]
        assert store.flush()
        stats = store.stats()
        assert stats.quarantined == {Quarantine.CHECKSUM: 1}
        assert stats.failed_loads == {StoreDecline.CORRUPT: 1}
        assert stats.tiers[handle.tier].bytes == 0
        store.check_integrity()


def test_a_file_cut_short_while_the_store_runs(
    kit: Any, open_store: OpenStore, namespace: Namespace, files: Files
) -> None:
    store = open_store(disk_bytes=MIB)
    store.recover()
    truncate(files.of("a")[0])
    files.of("whole")[0].unlink()
    for name in ("a", "whole"):
        with store.acquire(namespace, name) or pytest.fail("not there") as handle, pytest.raises(TransferFailedError):
            store.load(handle).result(30)
        assert not store.contains(namespace, name)
    assert store.stats().quarantined == {Quarantine.TRUNCATED: 1, Quarantine.MISSING_DATA: 1}


def test_a_damaged_donor_is_not_promoted(kit: Any, open_store: OpenStore, namespace: Namespace, files: Files) -> None:
    store = open_store(disk_bytes=MIB, host_bytes=MIB, promote=True)
    store.recover()
    handle = store.acquire(namespace, "a")
    assert handle is not None
    flip(files.of("a")[0], -1)
    handle.release()
    assert store.flush()
    assert not store.contains(namespace, "a")
    assert store.stats().quarantined == {Quarantine.CHECKSUM: 1}
    assert store.stats().tiers[handle.tier].pinned_donors == 0
    store.check_integrity()


def test_unfinished_writes_are_removed(open_store: OpenStore, files: Files) -> None:
    donors = files.root / "donors"
    files.of("a")[1].unlink()  # The process ended between data and metadata.
    stem = files.of("whole")[0].stem
    for name in (f"{stem}.safetensors.partial", f"{stem}.json.partial", f"{'0' * 32}-{'1' * 16}.safetensors"):
        (donors / name).write_bytes(b"half")
    (donors / "notes.json").write_text("somebody else's")
    store = open_store(disk_bytes=MIB)
    assert [donor.donor_id for donor in store.recover()] == ["whole"]
    assert sorted(donors.iterdir()) == sorted([*files.of("whole"), donors / "notes.json"])
    assert files.aside == []
    assert store.stats().quarantined == {}


def test_the_quarantine_is_bounded(kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path) -> None:
    store = open_store(disk_bytes=MIB, quarantine_bytes=20_000)
    for number in range(8):
        store.put(namespace, str(number), kit.kv(number))
        assert store.flush()
        flip(Files(tmp_path / "kv").of(str(number))[0], -1)
        handle = store.acquire(namespace, str(number))
        assert handle is not None
        with handle, pytest.raises(TransferFailedError):
            store.load(handle).result(30)
    aside = Files(tmp_path / "kv").aside
    assert 0 < sum(path.stat().st_size for path in aside) <= 20_000
    assert store.stats().quarantined == {Quarantine.CHECKSUM: 8}
