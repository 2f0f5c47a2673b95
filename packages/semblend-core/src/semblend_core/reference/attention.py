"""Attention of the reference engine: rows at any positions over a workspace, open to an observer.

Registered with transformers as ``semblend``. A model whose attention is set to it runs as with ``sdpa`` when called
directly; inside ``running(forward)`` it writes its KV into the forward's workspace and attends to what is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from semblend_core.reference.workspace import Positions, Workspace

IMPLEMENTATION = "semblend"
_ROWS_AT_ONCE = 256
_MASK_ELEMENTS_KEPT = 1 << 26
# What some architectures add to softmax(QK)V, and ``sdpa`` leaves out without a word.
_UNKNOWN_TERMS = ("softcap", "s_aux", "position_bias")


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """What one layer of a forward computed. Tensors are borrowed: copy what outlives the call."""

    layer: int
    positions: Tensor
    """[rows], ascending"""
    queries: Tensor
    """[q_heads, rows, key_dim], after rotary embedding"""
    scaling: float
    """Multiplies the product of queries and keys before the softmax."""
    keys: Tensor
    """[kv_heads, columns, key_dim]: the workspace up to the last row, with the rows' own K written"""
    values: Tensor
    """[kv_heads, columns, value_dim]"""
    replaced_keys: Tensor
    """[kv_heads, rows, key_dim]: what the rows' positions held before; arbitrary where they held nothing"""
    replaced_values: Tensor
    """[kv_heads, rows, value_dim]"""

    @property
    def fresh_keys(self) -> Tensor:
        """[kv_heads, rows, key_dim], as just computed."""
        return self.keys.index_select(1, self.positions)

    @property
    def fresh_values(self) -> Tensor:
        """[kv_heads, rows, value_dim], as just computed."""
        return self.values.index_select(1, self.positions)


class StopForward(Exception):  # noqa: N818 - not an error: how a probe leaves the model's own loop
    """Ends a forward after the layer it was asked to stop at."""


class Forward:
    """One forward of one engine: where it writes, what it may see, who watches."""

    def __init__(
        self,
        workspace: Workspace,
        positions: Positions,
        *,
        observer: Callable[[Observation], None] | None = None,
        observed_layers: Collection[int] | None = None,
        stop_after_layer: int | None = None,
        keep: bool = True,
    ) -> None:
        self.workspace = workspace
        self.positions = positions
        self.layers_run: list[int] = []
        self._observer = observer
        self._observed_layers = observed_layers
        self._stop_after_layer = stop_after_layer
        self._keep = keep
        self._replaced: dict[int, tuple[Tensor, Tensor]] = {}
        self._masks: dict[int, Tensor] = {}

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Take the rows' [1, kv_heads, rows, dim]; give all columns the rows may see."""
        if self._observes(layer) or not self._keep:
            old_keys, old_values = self.workspace.rows(layer, self.positions)
            self._replaced[layer] = old_keys.clone(), old_values.clone()
        self.workspace.write_rows(layer, self.positions, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        self.layers_run.append(layer)
        seen_keys, seen_values = self.workspace.columns(layer, self.positions.end)
        return seen_keys[None], seen_values[None]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """[1, q_heads, rows, dim] over [1, kv_heads, columns, dim], each row over the columns up to its own."""
        layer = self.layers_run[-1]
        if self._observer is not None and self._observes(layer):
            self._observer(self._observation(layer, queries, scaling))
        if layer == self._stop_after_layer:
            raise StopForward
        rows, columns = queries.shape[2], keys.shape[2]
        if rows == columns:
            return _causal_attention(queries, keys, values, scaling)
        blocks = [self._attend_block(start, queries, keys, values, scaling) for start in range(0, rows, _ROWS_AT_ONCE)]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)

    def restore(self) -> None:
        """Undo the writes of a forward that was not to be kept."""
        if not self._keep:
            for layer, (keys, values) in self._replaced.items():
                self.workspace.write_rows(layer, self.positions, keys, values)

    def _attend_block(self, start: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        # Rows in blocks: the mask stays small, and a block skips the columns behind its last row.
        end = min(start + _ROWS_AT_ONCE, queries.shape[2])
        columns = int(self.positions.numbers[end - 1]) + 1
        kv_heads = keys.shape[1]
        # The query heads of one KV head stand below each other as further rows, so that no kernel repeats the KV.
        group = queries.shape[1] // kv_heads
        attended = scaled_dot_product_attention(
            queries[:, :, start:end].reshape(1, kv_heads, group * (end - start), queries.shape[-1]),
            keys[:, :, :columns],
            values[:, :, :columns],
            attn_mask=None if len(self.positions) == 1 else self._mask(start, end, columns, group),
            scale=scaling,
        )
        return attended.reshape(1, queries.shape[1], end - start, values.shape[-1])

    def _mask(self, start: int, end: int, columns: int, group: int) -> Tensor:
        mask = self._masks.get(start)
        if mask is None:
            positions = self.positions.tensor[start:end].repeat(group)
            mask = torch.arange(columns, device=positions.device) <= positions[:, None]
            if group * len(self.positions) * self.positions.end <= _MASK_ELEMENTS_KEPT:
                self._masks[start] = mask
        return mask

    def _observes(self, layer: int) -> bool:
        return self._observer is not None and (self._observed_layers is None or layer in self._observed_layers)

    def _observation(self, layer: int, queries: Tensor, scaling: float) -> Observation:
        keys, values = self.workspace.columns(layer, self.positions.end)
        replaced_keys, replaced_values = self._replaced[layer]
        return Observation(
            layer=layer,
            positions=self.positions.tensor,
            queries=queries[0],
            scaling=scaling,
            keys=keys,
            values=values,
            replaced_keys=replaced_keys.transpose(0, 1),
            replaced_values=replaced_values.transpose(0, 1),
        )


class ForwardCache(Cache):  # type: ignore[misc, unused-ignore]
    """The cache transformers sees: every layer's KV goes to the forward."""

    def __init__(self, forward: Forward) -> None:
        super().__init__(layers=[])
        self._forward = forward

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self._forward.write(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._forward.positions.end - len(self._forward.positions)


_running: ContextVar[Forward | None] = ContextVar("semblend_running_forward", default=None)


@contextlib.contextmanager
def running(forward: Forward) -> Iterator[None]:
    """Direct the attention of this thread's model calls to ``forward``."""
    token = _running.set(forward)
    try:
        yield
    finally:
        _running.reset(token)
        forward.restore()


def semblend_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer."""
    forward = _running.get()
    if forward is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return plain
    _refuse_what_is_not_plain_attention(kwargs, forward.positions.end)
    attended = forward.attend(query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling)
    return attended.transpose(1, 2).contiguous(), None


def _refuse_what_is_not_plain_attention(kwargs: dict[str, Any], columns: int) -> None:
    for term in _UNKNOWN_TERMS:
        if kwargs.get(term) is not None:
            raise UnsupportedModelError(f"its attention uses {term!r}, which the reference engine does not compute")
    window = kwargs.get("sliding_window")
    if window is not None and columns > window:
        raise UnsupportedModelError(f"its sliding window of {window} tokens is shorter than {columns} tokens")


def _causal_attention(queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Rows from position 0 on, without a hole: the kernels' own causal mode, which needs no mask."""
    q_heads, rows, dim = queries.shape[1:]
    kv_heads = keys.shape[1]
    group = q_heads // kv_heads
    # KV heads stand in the batch and are broadcast over their queries: every kernel takes that, none copies.
    attended = scaled_dot_product_attention(
        queries.reshape(kv_heads, group, rows, dim),
        keys.transpose(0, 1).expand(kv_heads, group, rows, dim),
        values.transpose(0, 1).expand(kv_heads, group, rows, values.shape[-1]),
        scale=scaling,
        is_causal=True,
    )
    return attended.reshape(1, q_heads, rows, values.shape[-1])


AttentionInterface.register(IMPLEMENTATION, semblend_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


class UnsupportedModelError(ValueError):
    """A model that the reference engine cannot run correctly. The message says what about it, and what helps."""
