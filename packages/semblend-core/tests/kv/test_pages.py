"""Pages on disk: whole or not there, whatever happens to the process or the files, and never more than the budget."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from semblend_core.kv import PageFolder, pages

SIZE = 4096


def page(number: int, size: int = SIZE) -> bytes:
    return random.Random(number).randbytes(size)


def write(folder: PageFolder, key: str, content: bytes) -> bool:
    return folder.write(key, memoryview(content))


def read(folder: PageFolder, key: str, size: int = SIZE) -> bytes | None:
    target = bytearray(size)
    return bytes(target) if folder.read(key, memoryview(target)) else None


def files(place: Path, kind: str = "page") -> list[Path]:
    return sorted(place.glob(f"*.{kind}"))


def test_what_was_written_is_read_also_by_the_next_process(tmp_path: Path) -> None:
    folder = PageFolder(tmp_path, 2**20)
    assert write(folder, "a", page(1))
    assert folder.holds("a")
    assert not folder.holds("b")
    assert read(folder, "a") == page(1)
    assert read(folder, "b") is None
    later = PageFolder(tmp_path, 2**20)
    assert read(later, "a") == page(1)
    assert (len(later), later.bytes) == (1, files(tmp_path)[0].stat().st_size)
    assert files(tmp_path)[0].stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("place", [0, 4, 24, 32, 36, 40, SIZE // 2, SIZE + 35])
def test_one_damaged_bit_anywhere_is_a_miss_and_the_page_can_be_written_again(tmp_path: Path, place: int) -> None:
    folder = PageFolder(tmp_path, 2**20)
    write(folder, "a", page(1))
    (file,) = files(tmp_path)
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    assert read(folder, "a") is None
    assert (folder.damaged, folder.bytes, files(tmp_path)) == (1, 0, [])
    assert write(folder, "a", page(1))
    assert read(folder, "a") == page(1)


@pytest.mark.parametrize("length", [0, 10, 36, SIZE, SIZE + 35, SIZE + 37])
def test_a_page_that_was_cut_or_has_grown_is_a_miss(tmp_path: Path, length: int) -> None:
    folder = PageFolder(tmp_path, 2**20)
    write(folder, "a", page(1))
    os.truncate(files(tmp_path)[0], length)
    assert read(folder, "a") is None


def test_a_page_under_anothers_name_or_of_another_size_is_a_miss(tmp_path: Path) -> None:
    folder = PageFolder(tmp_path, 2**20)
    write(folder, "a", page(1))
    name = files(tmp_path)[0]
    write(folder, "b", page(2))
    name.write_bytes(next(file for file in files(tmp_path) if file != name).read_bytes())
    assert read(folder, "a") is None
    assert read(folder, "b", SIZE - 1) is None


def test_the_least_recently_used_go_first_also_after_a_restart(tmp_path: Path) -> None:
    budget = 4 * (SIZE + 36)
    folder = PageFolder(tmp_path, budget)
    for number in range(4):
        assert write(folder, str(number), page(number))
        time.sleep(0.01)
    assert read(folder, "0") == page(0)
    assert write(folder, "4", page(4))
    assert [folder.holds(str(number)) for number in range(5)] == [True, False, True, True, True]
    later = PageFolder(tmp_path, 2 * (SIZE + 36))
    assert [later.holds(str(number)) for number in range(5)] == [True, False, False, False, True]
    assert later.bytes <= 2 * (SIZE + 36)
    assert not write(later, "too large", page(9, 3 * SIZE))


def test_a_disk_that_refuses_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = PageFolder(tmp_path, 2**20)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        assert not write(folder, "a", page(1))
    assert (folder.bytes, list(tmp_path.iterdir())) == (0, [])
    assert write(folder, "a", page(1))
    files(tmp_path)[0].unlink()
    assert read(folder, "a") is None
    assert folder.bytes == 0


def test_clear_leaves_nothing(tmp_path: Path) -> None:
    folder = PageFolder(tmp_path, 2**20)
    for number in range(3):
        write(folder, str(number), page(number))
    folder.clear()
    assert (len(folder), folder.bytes, files(tmp_path)) == (0, 0, [])


WRITER = """
import random, sys
from pathlib import Path
from semblend_core.kv import PageFolder
folder = PageFolder(Path(sys.argv[1]), 2**30)
for number in range(10**6):
    assert folder.write(str(number), memoryview(random.Random(number).randbytes(2**20)))
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_whole_pages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    while int(writer.stdout.readline()) < 20:
        pass
    writer.send_signal(signal.SIGKILL)
    done = 1 + max([int(line) for line in writer.stdout.read().split()], default=20)
    writer.wait()
    monkeypatch.setattr(pages, "_ABANDONED_AFTER_S", 0.0)
    folder = PageFolder(tmp_path, 2**30)
    assert files(tmp_path, "part") == []
    assert all(read(folder, str(number), 2**20) == page(number, 2**20) for number in range(done))
    assert read(folder, str(done), 2**20) in (None, page(done, 2**20))
    assert folder.damaged == 0


def test_clearing_takes_what_another_process_wrote(tmp_path: Path) -> None:
    ours, theirs = PageFolder(tmp_path, 2**20), PageFolder(tmp_path, 2**20)
    assert write(theirs, "a", page(1))
    ours.clear()
    assert not ours.holds("a")
    assert read(theirs, "a") is None
    assert (ours.bytes, len(theirs)) == (0, 0)
