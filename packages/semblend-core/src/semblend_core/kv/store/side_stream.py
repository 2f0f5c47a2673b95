"""Copies beside the engine's own work. All that is special to CUDA in the store is here and in the transfers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from semblend_core.kv.store.kv_spec import LayerTensors

_new_stream: Callable[..., Any] = torch.cuda.Stream
# Blocking: a background thread that waits for it sleeps and does not spin on a core of the engine.
_new_event: Callable[..., Any] = partial(torch.cuda.Event, blocking=True)

Mark: TypeAlias = Any
"""A ``torch.cuda.Event``; None where the work was done before the call returned."""


class SideStream:
    """A CUDA stream of its own; on a CPU, the calling thread. Usable from any thread."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = _new_stream(device) if device.type == "cuda" else None

    @contextmanager
    def open(self, after: Mark = None) -> Iterator[None]:
        """Work inside runs on this stream, behind ``after``; memory allocated inside belongs to it."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            yield

    def mark(self) -> Mark:
        """Done when everything issued on this stream so far is done."""
        if self._stream is None:
            return None
        event = _new_event()
        event.record(self._stream)
        return event


def mark_caller(tensor: Tensor) -> Mark:
    """Done when the work that the caller issued so far, such as the making of ``tensor``, is done."""
    if tensor.device.type != "cuda":
        return None
    event = _new_event()
    event.record(torch.cuda.current_stream(tensor.device))
    return event


def wait(mark: Mark) -> None:
    """Block this thread until ``mark`` is done."""
    if mark is not None:
        mark.synchronize()


def is_done(mark: Mark) -> bool:
    return mark is None or bool(mark.query())


def copy_layers(source: Sequence[LayerTensors], target: Sequence[LayerTensors]) -> None:
    """Issue the copy of whole layers on the current stream."""
    for (source_keys, source_values), (target_keys, target_values) in zip(source, target, strict=True):
        target_keys.copy_(source_keys, non_blocking=True)
        if source_values is not None and target_values is not None:
            target_values.copy_(source_values, non_blocking=True)
