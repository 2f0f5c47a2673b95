"""A correction that was fitted for one model: what relocated KV, its place and the rows' change say of its own change.

The file is never needed. Without one, or with one that does not fit, the strengths of ``MeanShift`` are taken.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from semblend_core.kv.pieces import PLACES
from semblend_core.kv.row_shift import LARGEST_CHANGE, Seen
from semblend_core.recompute import MeanShift

logger = logging.getLogger(__name__)

FORMAT = "semblend-correction-1"
"""Changes with whatever a map is multiplied with."""
SUFFIX = ".safetensors"
NOWHERE = "none"
_MAPS = "maps"


@dataclass(frozen=True, slots=True)
class KvShape:
    """Of the model whose KV is corrected."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def width(self) -> int:
        return self.key_dim + self.value_dim

    @property
    def inputs(self) -> int:
        """Numbers from which the change of one token in one head is predicted."""
        return 3 * self.width + PLACES

    @property
    def maps(self) -> tuple[int, int, int, int]:
        return self.layers, self.kv_heads, self.inputs, self.width


@dataclass(frozen=True, slots=True)
class HeadShare:
    """Which of a model's KV heads one tensor-parallel rank has: as engines deal them out, in their order."""

    rank: int = 0
    ranks: int = 1

    def of(self, kv_heads: int) -> range:
        """Where there are fewer heads than ranks, neighbours have the same one."""
        first = self.rank * kv_heads // self.ranks
        return range(first, first + max(1, kv_heads // self.ranks))


@dataclass(frozen=True, slots=True, eq=False)
class LearnedShift:
    """One linear map for each layer and head."""

    shape: KvShape
    maps: Tensor
    """[layers, kv_heads, inputs, key_dim + value_dim], float32"""
    shift: MeanShift
    """How rows were weighed when it was fitted."""

    def predict(self, layer: int, seen: Seen, places: Tensor) -> Tensor:
        """As :class:`Learned` has it. None is much longer than what the span's rows show."""
        found = torch.einsum("nhf,hfw->nhw", inputs_of(seen, places), self.maps[layer])
        length = found.flatten(1).square().sum(1).sqrt().clamp(min=torch.finfo(found.dtype).tiny)
        return found * (LARGEST_CHANGE * seen.usual / length).clamp(max=1)[:, None, None]

    def of_layers(self, layers: list[int]) -> LearnedShift:
        """For KV that has these of the layers alone."""
        return LearnedShift(replace(self.shape, layers=len(layers)), self.maps[layers], self.shift)

    def on(self, device: torch.device) -> LearnedShift:
        return LearnedShift(self.shape, self.maps.to(device), self.shift)

    def save(self, file: Path, identity: str, report: dict[str, Any]) -> None:
        """Whole or not at all."""
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.partial")
        told = {
            "format": FORMAT,
            "weights": identity,
            "shape": json.dumps([getattr(self.shape, name) for name in KvShape.__slots__]),
            "shift": json.dumps([getattr(self.shift, name) for name in MeanShift.__slots__]),
            "report": json.dumps(report),
        }
        save_file({_MAPS: self.maps.half().contiguous()}, partial, metadata=told)
        os.replace(partial, file)

    @classmethod
    def read(cls, file: Path, identity: str, shape: KvShape, share: HeadShare = HeadShare()) -> LearnedShift:  # noqa: B008 - frozen
        """For ``shape``, which has this share of the model's heads. Raises ``ValueError`` that says what is wrong."""
        try:
            with safe_open(file, framework="pt") as stored:
                told = stored.metadata() or {}
                if told.get("format") != FORMAT:
                    raise ValueError(f"its format is {told.get('format')!r}, this version reads {FORMAT!r}")
                if told.get("weights") != identity:
                    raise ValueError("it was fitted for other weights")
                held = KvShape(*json.loads(told["shape"]))
                heads = share.of(held.kv_heads)
                if replace(held, kv_heads=len(heads)) != shape:
                    raise ValueError(f"it is for KV of {held}, this engine's is {shape}")
                maps = stored.get_slice(_MAPS)[:, heads.start : heads.stop].float()
                shift = MeanShift(*json.loads(told["shift"]))
        except (SafetensorError, OSError, KeyError, TypeError) as error:
            raise ValueError(f"it cannot be read: {error}") from error
        if tuple(maps.shape) != shape.maps or not bool(maps.isfinite().all()):
            raise ValueError(f"its maps are {tuple(maps.shape)} or not finite, {shape.maps} are wanted")
        return cls(shape, maps, shift)


def inputs_of(seen: Seen, places: Tensor) -> Tensor:
    """[tokens, kv_heads, inputs]: what a map is multiplied with."""
    heads = seen.nearby.shape[1]
    placed = places[:, None].expand(-1, heads, -1)
    return torch.cat([seen.nearby, seen.whole, seen.own, placed], -1)


def folder_of_corrections(setting: str) -> Path | None:
    """None where nothing is looked for."""
    if setting == NOWHERE:
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(setting) if setting else Path(cache) / "semblend" / "corrections"


def find_learned_shift(
    setting: str,
    identity: Callable[[], str],
    shape: KvShape,
    device: torch.device,
    share: HeadShare = HeadShare(),  # noqa: B008 - frozen
) -> LearnedShift | None:
    """What was fitted for these weights; None where there is nothing. A file that does not fit is a warning.

    ``identity``: of the weights. It takes time to read, and is asked for only where something was fitted at all.
    ``share``: of the model's heads, where ``shape`` is one rank's.
    """
    folder = folder_of_corrections(setting)
    if folder is None or not any(folder.glob(f"*{SUFFIX}")):
        return None
    weights = identity()
    file = folder / f"{weights}{SUFFIX}"
    if not file.is_file():
        return None
    try:
        found = LearnedShift.read(file, weights, shape, share).on(device)
    except ValueError as error:
        logger.warning("the fitted correction %s is not used: %s", file, error)
        return None
    logger.info("relocated KV is corrected as was fitted for these weights: %s", file)
    return found
