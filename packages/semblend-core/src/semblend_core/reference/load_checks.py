"""What the reference engine tries out on a model before it serves one: cheap, and decisive where configs are silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from semblend_core.reference.unsupported import UnsupportedModelError

if TYPE_CHECKING:
    from semblend_core.reference.engine import ReferenceEngine

_PERIOD, _TIMES = 4, 8
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def check_that_layers_report(engine: ReferenceEngine) -> None:
    """A layer that keeps KV elsewhere, or attends in its own code, would be served wrongly and silently."""
    seen: list[int] = []
    engine.compute(engine.workspace(2), [0, 0], [0, 1], observer=lambda observation: seen.append(observation.layer))
    if seen != list(range(engine.geometry.layers)):
        raise UnsupportedModelError(
            f"of {engine.geometry.layers} layers only {sorted(set(seen))} attend through transformers' interface"
        )


def check_rotation(engine: ReferenceEngine) -> None:
    """Layer-0 K depends on token and position alone, so K moved by the rotation must equal K computed there."""
    written, turned = engine.geometry.key_dim, engine.rotation.key_dim
    if written != turned:
        raise UnsupportedModelError(
            f"it caches keys of {written} components, and its config's rotation is for {turned}"
        )
    _refuse_rounded_frequencies(engine)
    tokens = [*range(1, _PERIOD + 1)] * _TIMES
    workspace = engine.workspace(len(tokens))
    engine.compute(workspace, tokens, np.arange(len(tokens)), logits="none")
    shift = len(tokens) - _PERIOD
    moved = engine.rotation.rotate(workspace.keys[0, :_PERIOD], shift).float()
    computed = workspace.keys[0, shift:].float()
    error = float((moved - computed).norm() / computed.norm())
    if not error <= _TOLERANCE.get(engine.geometry.dtype, max(_TOLERANCE.values())):
        raise UnsupportedModelError(f"K rotated as its config says differs from computed K by {error:.1e} (relative)")


def _refuse_rounded_frequencies(engine: ReferenceEngine) -> None:
    # `model.to(bfloat16)` rounds them: the model then turns keys otherwise than its config says, more so further on.
    rounded = {
        buffer.dtype
        for name, buffer in engine.model.named_buffers()
        if "inv_freq" in name and buffer.dtype.itemsize < 4
    }
    if rounded:
        raise UnsupportedModelError(
            f"its rotary frequencies were rounded to {rounded.pop()} by a cast: load it with dtype=... instead"
        )
