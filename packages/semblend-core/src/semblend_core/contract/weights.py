"""Which weights these are: a word made of what the files hold, not of where they lie or when they were written."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
BESIDE_WEIGHTS = (".json", ".model", ".tiktoken", ".txt", ".py")
"""Configuration, tokenizer, and code that a checkpoint brings along."""
LOADED_FROM_FILES = frozenset(
    (
        *("auto", "hf", "safetensors", "pt", "npcache", "mistral", "gguf", "bitsandbytes"),
        *("fastsafetensors", "instanttensor", "sharded_state"),
    )
)
"""What engines call ways to load weights that lie where the model lies. By another way they may be anything."""
SAYS_NOTHING = ("generation_config.json", "trainer_state.json")
"""Neither KV nor tokens depend on it."""

PIECE = 4096
"""Bytes read at one place: a disk reads no less."""
PIECES_OF_A_TENSOR = (8, 128)
"""At least and at most: one in every 2 MiB between those bounds."""
PIECES_OF_A_FILE = (8, 32_768)
"""Of one that does not say where its tensors lie: one in every 64 KiB."""
OF_A_ROW = 64
"""Bytes of each row of an embedding, since training may change the rows of a few tokens alone."""
EMBEDDINGS = ("embed", "embd", "wte")
LARGEST_HEADER = 100 * 1024**2
"""As safetensors has it."""
SMALL_FILE = 64 * 1024**2
"""Read as a whole, as most adapters are."""
READERS = 8
SETTLED_AFTER_S = 5.0
MOST_READ = 64
_CHUNK = 4 * 1024**2
_READ: dict[tuple[tuple[object, ...], ...], str] = {}
"""Words of checkpoints by the state of their files. The time of a file's last change is the kernel's own: unlike that
of its last writing, nobody sets it."""

Region = tuple[int, int]
"""Where bytes begin in a file, and how many."""


def identity_of_weights(place: str | os.PathLike[str], commit: str | None = None, load_format: str = "auto") -> str:
    """A word for the weights at ``place``: another one as soon as a checkpoint there is replaced.

    ``place`` is a file or folder, told by its content: all of small files, and of large ones some of every tensor. A
    copy elsewhere has the same word. Or it is the name under which a hub keeps the weights, told by ``commit``, the
    revision which that name stood for. ``load_format`` is the engine's. What nothing tells, such as random weights,
    gets a random word: its KV serves the process that computed it, and is never found by another.
    """
    if load_format not in LOADED_FROM_FILES:
        return _unknown(f"load_format={load_format} need not read them from {place}")
    root = Path(place)
    try:
        files = _files_of(root)
        if any(path.suffix in WEIGHTS for path in files):
            return _word(root, files)
    except OSError as error:
        return _unknown(f"the files at {place} cannot be read: {error}")
    return commit or _unknown(f"no files of weights are at {place}, and no revision is known")


def _unknown(reason: str) -> str:
    logger.info("nothing tells these weights, so no other process finds donors of theirs on disk: %s", reason)
    return os.urandom(16).hex()


def _files_of(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        return []
    told = (path for path in place.rglob("*") if path.suffix in WEIGHTS + BESIDE_WEIGHTS)
    return sorted(path for path in told if path.name not in SAYS_NOTHING and path.is_file())


def _word(root: Path, files: list[Path]) -> str:
    """Read once in a process while no file is written to: an engine may ask with every request."""
    states = [(str(path), path.stat()) for path in files]
    known = tuple((name, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for name, at in states)
    word = _READ.get(known) or _read_word(root, files)
    # A file that was written just now may be written again without a change of its times.
    if max(at.st_ctime for _, at in states) < time.time() - SETTLED_AFTER_S:
        _READ[known] = word
        while len(_READ) > MOST_READ:
            del _READ[next(iter(_READ))]
    return word


def _read_word(root: Path, files: list[Path]) -> str:
    whole = hashlib.blake2b(digest_size=16, person=b"semblend-weights")
    with ThreadPoolExecutor(READERS) as readers:
        for path, digest in zip(files, readers.map(_digest_of_file, files), strict=True):
            name = "" if path == root else path.relative_to(root).as_posix()
            whole.update(json.dumps([name, digest]).encode())
    return whole.hexdigest()


def _digest_of_file(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return _File(descriptor, path).digest()
    finally:
        os.close(descriptor)


class _File:
    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path = descriptor, path
        self._size = os.fstat(descriptor).st_size
        self._hash = hashlib.blake2b(self._size.to_bytes(8, "little"), digest_size=16)

    def digest(self) -> str:
        if self._size <= SMALL_FILE:
            self._take((0, self._size))
        elif (tensors := self._tensors()) is not None:
            for name, about, region in tensors:
                self._take_tensor(name, about, region)
        else:
            self._take_records()
            self._take_pieces("", (0, self._size), 64 * 1024, PIECES_OF_A_FILE)
        return self._hash.hexdigest()

    def _tensors(self) -> list[tuple[str, dict[str, Any], Region]] | None:
        """Of safetensors, with what its header says of each. None where it is no such file."""
        length = int.from_bytes(os.pread(self._descriptor, 8, 0), "little")
        if self._path.suffix != ".safetensors" or not 0 < length <= min(LARGEST_HEADER, self._size - 8):
            return None
        header = self._read((8, length))
        try:
            entries = json.loads(header)
            entries.pop("__metadata__", None)
            tensors = [(name, about, self._region(8 + length, about)) for name, about in entries.items()]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        self._hash.update(header)
        return tensors

    def _region(self, base: int, about: dict[str, Any]) -> Region:
        begin, end = about["data_offsets"]
        if not (isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end <= self._size - base):
            raise ValueError("a tensor outside its file")
        return base + begin, end - begin

    def _take_tensor(self, name: str, about: dict[str, Any], region: Region) -> None:
        self._take_pieces(name, region, 2 * 1024**2, PIECES_OF_A_TENSOR)
        if any(word in name for word in EMBEDDINGS):
            self._take_rows(about.get("shape"), region)

    def _take_records(self) -> None:
        """What PyTorch saves is a zip archive, whose directory has a checksum of every tensor."""
        try:
            with zipfile.ZipFile(self._path) as archive:
                records = [(record.filename, record.CRC, record.file_size) for record in archive.infolist()]
        except (zipfile.BadZipFile, ValueError, NotImplementedError):
            return
        self._hash.update(json.dumps(records).encode())

    def _take_pieces(self, name: str, region: Region, apart: int, bounds: tuple[int, int]) -> None:
        """One piece in about every ``apart`` bytes, each where a hash of the name puts it; all of a small region."""
        start, length = region
        fewest, most = bounds
        count = min(most, max(fewest, length // apart))
        if length <= 2 * count * PIECE:
            self._take(region)
            return
        step = length // count
        places = np.frombuffer(hashlib.shake_128(name.encode("utf-8", "surrogatepass")).digest(8 * count), "<u8")
        for number, place in enumerate(places.tolist()):
            self._take((start + number * step + place % (step - PIECE), PIECE))

    def _take_rows(self, shape: object, region: Region) -> None:
        start, length = region
        rows = shape[0] if isinstance(shape, list) and len(shape) > 1 else 0
        if not isinstance(rows, int) or rows < 1 or length % rows or length // rows < OF_A_ROW:
            return
        row = length // rows
        for piece in _chunks((start, length), row * max(1, _CHUNK // row)):
            content = np.frombuffer(self._read(piece), np.uint8)
            self._hash.update(content.reshape(-1, row)[:, row // 3 :][:, :OF_A_ROW].tobytes())

    def _take(self, region: Region) -> None:
        for piece in _chunks(region, _CHUNK):
            self._hash.update(self._read(piece))

    def _read(self, region: Region) -> bytes:
        start, length = region
        content = os.pread(self._descriptor, length, start)
        if len(content) != length:
            raise OSError(f"{self._path} changed while it was read")
        return content


def _chunks(region: Region, size: int) -> Iterator[Region]:
    start, length = region
    for offset in range(0, length, size):
        yield start + offset, min(size, length - offset)
