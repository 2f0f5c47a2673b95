"""Files that are not what was written: every one is a clear answer or a decline, and nothing else is lost by it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import strategies as st

from semblend_core import Namespace, read_audit
from semblend_core.costs import CostFile, StepTimes
from semblend_core.kv import DonorKv, PageFolder
from semblend_core.kv.store import DonorStore, StoreOptions
from semblend_core.kv.store.donor_file import _digest
from semblend_core.telemetry import reader
from semblend_core.telemetry.events import AUDIT_SCHEMA
from semblend_core.testing.fuzzing import changed, damaged, documents, few_or_many, fuzz

MIB = 1024**2
RECORD = json.dumps({"schema": AUDIT_SCHEMA, "event": "lookup", "request_id": "r", "tokens": 3}).encode() + b"\n"
NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="d", kv_layout="nhd", block_size=16, adapter=None, salt=None
)


# --- The audit stream ----------------------------------------------------------------------------------------------


@few_or_many
def test_whatever_an_audit_stream_holds_its_whole_records_are_read(cases: int, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    def check(parts: list[bytes]) -> None:
        path.write_bytes(RECORD + b"".join(part.replace(b"\n", b" ") + b"\n" for part in parts) + RECORD)
        reading = read_audit(path)
        assert reading.records[0] == reading.records[-1] == json.loads(RECORD)
        assert len(reading.records) + len(reading.torn) <= 2 + len(parts)
        assert all(len(str(torn)) < 1000 for torn in reading.torn)

    fuzz(cases, check, st.lists(documents | damaged(RECORD), max_size=6))


def test_a_line_without_end_is_torn_and_the_next_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LONGEST_LINE", 1000)
    path = tmp_path / "audit.jsonl"
    path.write_bytes(RECORD + b"x" * 12_345 + b"\n" + RECORD + b"y" * 1001)
    reading = read_audit(path)
    assert len(reading.records) == 2
    assert [(torn.line, torn.problem) for torn in reading.torn] == [(n, "longer than 1000 bytes") for n in (2, 4)]


# --- Donors on disk ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store with the donors ``whole`` and ``hit``."""
    folder = tmp_path_factory.mktemp("written") / "kv"
    with DonorStore(StoreOptions(host_bytes=0, disk_bytes=MIB, disk_path=folder)) as store:
        for name in ("whole", "hit"):
            keys = torch.randn(2, 20, 1, 4)
            store.put(NAMESPACE, name, DonorKv(keys, keys.clone(), 0), token_ids=range(20))
        assert store.flush()
    return folder


def files_of(folder: Path, donor_id: str) -> tuple[Path, Path]:
    for path in (folder / "donors").glob("*.json"):
        if json.loads(path.read_bytes())["donor"]["donor_id"] == donor_id:
            return path, path.with_suffix(".safetensors")
    raise LookupError(donor_id)


def recovered(folder: Path) -> list[str]:
    """By the store of a process that starts now. What it calls found can be read, or is said to be corrupt."""
    with DonorStore(StoreOptions(host_bytes=0, disk_bytes=MIB, disk_path=folder)) as store:
        found = [donor.donor_id for donor in store.recover()]
        for donor_id in found:
            handle = store.acquire(NAMESPACE, donor_id)
            if handle is not None:
                with handle:
                    transfer = store.load(handle)
                    store.flush()
                    assert transfer.done()
        store.check_integrity()
        return found


def fuzz_a_donor(cases: int, written: Path, tmp_path: Path, which: int, contents: st.SearchStrategy[bytes]) -> None:
    """The metadata or the data of one donor hold anything: the other is found."""
    folder = shutil.copytree(written, tmp_path / "kv")
    hit = {path: path.read_bytes() for path in files_of(folder, "hit")}

    def check(content: bytes) -> None:
        shutil.rmtree(folder / "quarantine")
        for path, whole in hit.items():
            path.write_bytes(whole)
        list(hit)[which].write_bytes(content)
        assert "whole" in recovered(folder)

    fuzz(cases, check, contents)


@few_or_many
def test_whatever_a_donors_metadata_hold_the_other_donor_is_found(cases: int, written: Path, tmp_path: Path) -> None:
    metadata, _ = files_of(written, "hit")
    fuzz_a_donor(cases, written, tmp_path, 0, damaged(metadata.read_bytes()) | documents)


@few_or_many
def test_metadata_that_were_forged_with_their_digest_harm_nobody(cases: int, written: Path, tmp_path: Path) -> None:
    whole = json.loads(files_of(written, "hit")[0].read_bytes())

    def forged(donor: dict[str, object]) -> bytes:
        return json.dumps({**whole, "digest": _digest(donor), "donor": donor}).encode()

    fuzz_a_donor(cases, written, tmp_path, 0, changed(whole["donor"]).map(forged))


@few_or_many
def test_whatever_a_donors_data_hold_the_other_donor_is_found(cases: int, written: Path, tmp_path: Path) -> None:
    _, data = files_of(written, "hit")
    fuzz_a_donor(cases, written, tmp_path, 1, damaged(data.read_bytes()))


ODD = {
    "a link to another file": lambda path: path.symlink_to("/etc/hostname"),
    "a link to what has no end": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a pipe that nobody writes to": lambda path: os.mkfifo(path),
    "a folder": lambda path: (path / "inner").mkdir(parents=True),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("which", [0, 1], ids=["metadata", "data"])
def test_what_is_no_file_of_the_stores_own_is_not_opened(written: Path, tmp_path: Path, odd: str, which: int) -> None:
    folder = shutil.copytree(written, tmp_path / "kv")
    path = files_of(folder, "hit")[which]
    path.unlink()
    ODD[odd](path)
    assert recovered(folder) == ["whole"]


def test_metadata_without_end_are_not_read(written: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(written, tmp_path / "kv")
    with open(files_of(folder, "hit")[0], "ab") as file:
        file.truncate(2**40)
    assert recovered(folder) == ["whole"]


# --- Pages and costs -----------------------------------------------------------------------------------------------


@few_or_many
def test_whatever_a_page_holds_it_is_a_page_or_a_miss(cases: int, tmp_path: Path) -> None:
    page = bytes(range(256))
    PageFolder(tmp_path, MIB).write("key", memoryview(page))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()

    def check(content: bytes) -> None:
        path.write_bytes(content)
        into = bytearray(256)
        found = PageFolder(tmp_path, MIB).read("key", memoryview(into))
        assert found == (content == whole)
        assert not found or bytes(into) == page

    fuzz(cases, check, damaged(whole))


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_page_is_a_miss(tmp_path: Path, odd: str) -> None:
    pages = PageFolder(tmp_path, MIB)
    pages.write("key", memoryview(bytes(100)))
    (path,) = tmp_path.iterdir()
    path.unlink()
    ODD[odd](path)
    assert not PageFolder(tmp_path, MIB).read("key", memoryview(bytearray(100)))
    assert not pages.read("key", memoryview(bytearray(100)))


@few_or_many
def test_whatever_a_cost_file_holds_the_engine_starts(cases: int, tmp_path: Path) -> None:
    kept = CostFile(tmp_path, {"engine": "e"})
    kept.save(StepTimes().as_json())
    whole = kept.path.read_bytes()

    def check(content: bytes) -> None:
        kept.path.write_bytes(content)
        loaded = kept.load()
        assert loaded is None or loaded.as_json()

    said = changed(json.loads(whole)).map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"))
    fuzz(cases, check, damaged(whole) | said)
