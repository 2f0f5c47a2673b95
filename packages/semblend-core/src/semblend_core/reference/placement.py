"""Putting kept KV into a workspace: an exact prefix as it is, a span turned to its new positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from semblend_core.contract import Plan, Span
from semblend_core.kv.donor_kv import DonorKv, InvalidKvError
from semblend_core.reference.workspace import Workspace

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
