"""The KV of one request in memory of fixed size: donor KV is placed into it, computed rows are written into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semblend_core.contract import Plan, Span
from semblend_core.kv.donor_kv import DonorKv, InvalidKvError


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """The shape of a model's KV: the same in every layer."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device


class Positions:
    """The ascending positions of one forward's rows, with what several layers ask of them worked out once."""

    def __init__(self, positions: NDArray[np.int64], device: torch.device) -> None:
        if positions.ndim != 1 or positions.size == 0:
            raise ValueError("a forward needs at least one position, in a flat sequence")
        if positions[0] < 0 or (np.diff(positions) < 1).any():
            raise ValueError("positions start at 0 and ascend without repetition")
        self.numbers = positions
        self.first = int(positions[0])
        self.end = int(positions[-1]) + 1
        """One past the last position: a forward looks at no column beyond."""
        self.contiguous = self.end - self.first == positions.size
        self.tensor = torch.from_numpy(positions).to(device)

    def __len__(self) -> int:
        return int(self.numbers.size)

    @property
    def index(self) -> Any:
        """Indexes the token axis of KV: a slice where possible, since that makes views and no gathers."""
        return slice(self.first, self.end) if self.contiguous else self.tensor


class Workspace:
    """KV of one request, positions 0 to ``capacity``. Not for use by several threads at once.

    ``filled`` says which positions hold KV in every layer; nothing else may be attended to. ``approximate_from`` is the
    first position that was relocated, or None: from there on the KV is no donor's.
    """

    def __init__(self, geometry: KvGeometry, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a workspace holds at least one token, got capacity {capacity}")
        self.geometry = geometry
        self.keys, self.values = _buffers(geometry, capacity)
        self.filled = np.zeros(capacity, dtype=np.bool_)
        self.approximate_from: int | None = None

    @property
    def capacity(self) -> int:
        return int(self.filled.size)

    @property
    def length(self) -> int:
        """Filled positions from the start on, without a hole."""
        return self.capacity if self.filled.all() else int(np.argmin(self.filled))

    def reserve(self, capacity: int) -> None:
        """Make room for positions up to ``capacity``. What is there is kept."""
        if capacity <= self.capacity:
            return
        kept = self.capacity
        keys, values = _buffers(self.geometry, capacity)
        keys[:, :kept], values[:, :kept] = self.keys, self.values
        self.keys, self.values = keys, values
        self.filled = np.concatenate([self.filled, np.zeros(capacity - kept, dtype=np.bool_)])

    def truncate(self, length: int) -> None:
        """Forget everything from position ``length`` on."""
        self.filled[length:] = False
        if self.approximate_from is not None and self.approximate_from >= length:
            self.approximate_from = None

    def first_hole(self, positions: Positions) -> int | None:
        """The first position that a forward over ``positions`` would look at and that holds nothing."""
        seen = self.filled[: positions.end].copy()
        seen[positions.numbers] = True
        return None if seen.all() else int(np.argmin(seen))

    def rows(self, layer: int, positions: Positions) -> tuple[Tensor, Tensor]:
        """K and V at ``positions``, [rows, kv_heads, dim]. Views where the positions are contiguous."""
        return self.keys[layer][positions.index], self.values[layer][positions.index]

    def write_rows(self, layer: int, positions: Positions, keys: Tensor, values: Tensor) -> None:
        """Store [rows, kv_heads, dim]. Whoever writes every layer marks the positions as filled."""
        self.keys[layer][positions.index] = keys
        self.values[layer][positions.index] = values

    def columns(self, layer: int, end: int) -> tuple[Tensor, Tensor]:
        """Views of K and V at positions 0 to ``end``, [kv_heads, end, dim]: how attention takes them."""
        return self.keys[layer, :end].transpose(0, 1), self.values[layer, :end].transpose(0, 1)

    def copy_in(self, start: int, keys: Tensor, values: Tensor, *, approximate: bool) -> None:
        """Store [layers, tokens, kv_heads, dim] from position ``start`` on; other types and devices are converted."""
        end = start + keys.shape[1]
        if end > self.capacity:
            raise ValueError(
                f"positions {start} to {end} do not fit a workspace of {self.capacity}; reserve({end}) first"
            )
        self.keys[:, start:end].copy_(keys)
        self.values[:, start:end].copy_(values)
        self.filled[start:end] = True
        if approximate:
            self.approximate_from = start if self.approximate_from is None else min(start, self.approximate_from)

    def copy_out(self, length: int) -> DonorKv:
        """A copy of the first ``length`` positions."""
        if not 1 <= length <= self.length:
            raise InvalidKvError(f"cannot capture {length} tokens: the workspace holds {self.length} without a hole")
        return DonorKv(self.keys[:, :length].clone(), self.values[:, :length].clone())


def _buffers(geometry: KvGeometry, capacity: int) -> tuple[Tensor, Tensor]:
    # Left unset: nothing reads a position before it is filled, and zeroing 8K tokens costs as much as placing them.
    heads = (geometry.layers, capacity, geometry.kv_heads)
    return (
        torch.empty((*heads, geometry.key_dim), dtype=geometry.dtype, device=geometry.device),
        torch.empty((*heads, geometry.value_dim), dtype=geometry.dtype, device=geometry.device),
    )


Rotate = Callable[[Tensor, int], Tensor]
"""One layer's K [tokens, kv_heads, key_dim] and the shift, to K that many positions further on."""


def place_span(workspace: Workspace, span: Span, donor: DonorKv, rotate: Rotate) -> None:
    """Relocate one span: V copied, K turned by the shift."""
    start = span.donor_start - donor.first_position
    end = start + span.length
    if donor.values is None or start < 0 or end > donor.tokens:
        held = f"{donor.first_position} to {donor.first_position + donor.tokens}"
        raise InvalidKvError(f"the donor must hold K and V of all of {span}; it holds positions {held}")
    workspace.copy_in(span.target_start, donor.keys[:, start:end], donor.values[:, start:end], approximate=True)
    if span.shift:
        for keys in workspace.keys[:, span.target_start : span.target_end]:  # By layer: one fits a CPU's cache.
            keys.copy_(rotate(keys, span.shift))


def place_spans(workspace: Workspace, plan: Plan, donors: Mapping[str, DonorKv], rotate: Rotate) -> None:
    """Relocate every span of ``plan``."""
    for span in plan.spans:
        donor = donors.get(span.donor_id)
        if donor is None:
            raise InvalidKvError(f"the plan takes KV from donor {span.donor_id!r}, which is not among the donors")
        place_span(workspace, span, donor, rotate)


def place_exact_prefix(workspace: Workspace, source: DonorKv | Workspace | None, length: int) -> None:
    """Copy the first ``length`` tokens' KV, computed for the same tokens at the same positions."""
    if source is None:
        raise InvalidKvError(f"the plan starts behind an exact prefix of {length} tokens: pass exact_prefix")
    if isinstance(source, DonorKv):
        held = source.tokens if source.first_position == 0 else 0
    else:
        held = source.length if source.approximate_from is None else source.approximate_from
    if held < length or source.values is None:
        raise InvalidKvError(f"exact_prefix holds {held} exact tokens from position 0 on, the plan needs {length}")
    workspace.copy_in(0, source.keys[:, :length], source.values[:, :length], approximate=False)
