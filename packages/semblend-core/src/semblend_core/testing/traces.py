"""A byte search: whether something of a prompt or of its KV is still in memory or on disk."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

PIECE_BYTES = 2**24
LONGEST_WAY = 12


class Marker:
    """Random content that nothing else holds, in the forms in which a store might keep it."""

    def __init__(self, token_ids: Sequence[int] = (), raw: bytes = b"") -> None:
        """``token_ids``: of a random prompt, enough to be told from others. ``raw``: such as a piece of its KV."""
        ids = np.asarray(token_ids)
        binary = [ids.astype(kind).tobytes() for kind in (np.int32, np.int64, np.uint32, ">i4")] if ids.size else []
        text = [separator.join(map(str, ids.tolist())).encode() for separator in (",", ", ", " ")] if ids.size else []
        self._needles = [each for each in (*binary, *text, raw) if each]
        self._ids = ids.tolist()

    def is_in(self, content: bytes | memoryview) -> bool:
        overlap = max(map(len, self._needles), default=0)
        for start in range(0, len(content), PIECE_BYTES):
            piece = bytes(content[start : start + PIECE_BYTES + overlap])
            if any(needle in piece for needle in self._needles):
                return True
        return False

    def is_in_list(self, values: Sequence[Any]) -> bool:
        """A list of numbers is no bytes."""
        ids = self._ids
        if not ids or len(values) < len(ids):
            return False
        return any(list(values[at : at + len(ids)]) == ids for at, value in enumerate(values) if value == ids[0])


def found_in_files(folder: Path, marker: Marker) -> list[Path]:
    """The files below ``folder`` that hold it."""
    return [path for path in folder.rglob("*") if path.is_file() and marker.is_in(path.read_bytes())]


def found_in_memory(root: object, marker: Marker) -> list[str]:
    """What can be reached from ``root`` and holds it: whole buffers are searched, with what nobody uses of them."""
    searched: set[int] = set()
    found = []
    for each, way in _reachable(root):
        content = _content_of(each, searched)
        if marker.is_in(content) or (isinstance(each, list | tuple) and marker.is_in_list(each)):
            found.append(" > ".join(way))
    return found


def _content_of(value: object, searched: set[int]) -> bytes | memoryview:
    """Its bytes, unless they are among those ``searched``: many arrays and tensors share one buffer."""
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        return _new(value, searched)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return _new(torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage()).numpy(), searched)
    return b""


def _new(buffer: np.ndarray[Any, Any], searched: set[int]) -> bytes | memoryview:
    address = int(buffer.__array_interface__["data"][0])
    if address in searched or buffer.dtype.hasobject:
        return b""
    searched.add(address)
    return buffer.reshape(-1).view(np.uint8).data if buffer.flags.c_contiguous else buffer.tobytes()


def _reachable(root: object) -> Iterator[tuple[object, tuple[str, ...]]]:
    """Each object once, with the kinds of objects that lead to it."""
    seen = {id(root)}
    waiting: list[tuple[object, tuple[str, ...]]] = [(root, (type(root).__qualname__,))]
    while waiting:
        value, way = waiting.pop()
        yield value, way
        for each in _parts_of(value):
            if id(each) not in seen and not isinstance(each, ModuleType | type | FrameType):
                seen.add(id(each))
                waiting.append((each, (*way[-LONGEST_WAY:], type(each).__qualname__)))


def _parts_of(value: object) -> list[Any]:
    if isinstance(value, FunctionType):  # Not its globals, which lead everywhere.
        return [*(value.__closure__ or ()), *(value.__defaults__ or ())]
    return gc.get_referents(value)
