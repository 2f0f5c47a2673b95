"""Rows: one request as several sequences of the same batch, for the length of one forward.

In a batch that extends prompts, attention reads the prefix of each sequence from the pool through the request's row of
slots, after the layer has written the new tokens of all sequences. So the tokens that a request has to compute inside
its claim are further sequences with the same row of slots, each with its own prefix, positions and slots to write to.
They stand directly in front of the request's own tokens: for everything behind attention, which looks at the last
token of each request, rows and request are one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semblend_core.serving import Rows

MARK = "semblend_requests"
"""The attribute under which a forward batch keeps what it was before rows were added."""


@dataclass(frozen=True)
class RequestView:
    """A forward batch as the scheduler sees it: one entry per request."""

    batch_size: int
    seq_lens: Tensor
    seq_lens_cpu: Tensor | None
    req_pool_indices: Tensor
    extend_seq_lens: Tensor
    """Computed tokens, rows included."""
    extend_seq_lens_cpu: list[int]
    extend_logprob_start_lens_cpu: list[int] | None
    owners: list[int]
    """Index of the request that each sequence belongs to; a request's own sequence is its last."""

    def own_sequences(self) -> list[int]:
        last = {owner: at for at, owner in enumerate(self.owners)}
        return [last[request] for request in range(self.batch_size)]


_SHOWN = [name for name in RequestView.__dataclass_fields__ if name != "owners"]
_LISTS_FOR_SAMPLING = ("watermark_prompt_tail_ids", "watermark_context_hash_history")
"""Lists of a forward batch, some versions have them, that are made of its requests and read when sampling."""


_of_running_batch: RequestView | None = None
"""SGLang's runners copy a forward batch field by field, so what is hung on it does not reach the model."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One of the batch's, for attention: a row, or what a request computes by itself."""

    owner: int
    """Index of the request that it belongs to."""
    prefix: int
    length: int
    is_row: bool


@contextmanager
def as_sequences(batch: Any, rows: dict[int, Rows], prompts: dict[int, Any]) -> Iterator[RequestView]:
    """Show ``batch``, a ScheduleBatch, with the ``rows`` of its requests (by index) while its forward batch is made.

    ``prompts`` holds the token ids of the same requests. The batch itself is as before afterwards.
    """
    sequences = _sequences_of(batch, rows)
    view = _request_view(batch, rows, [each.owner for each in sequences])
    with _showing(batch, _shown(batch, sequences, rows, prompts)):
        yield view


@contextmanager
def as_if_alone(batch: Any, requests: Sequence[int]) -> Iterator[None]:
    """Show ``batch`` with these of its requests only, by index and in order. What sampling reads stays as it is."""
    here = torch.tensor(requests)
    there = _on_device(here.numpy(), batch.seq_lens.device)
    shown: dict[str, Any] = {
        name: [getattr(batch, name)[index] for index in requests]
        for name in ("reqs", "prefix_lens", "extend_lens", "extend_logprob_start_lens", "multimodal_inputs")
        if getattr(batch, name) is not None
    }
    shown |= {name: getattr(batch, name)[there] for name in ("req_pool_indices", "seq_lens", "orig_seq_lens")}
    for name in ("seq_lens_cpu", "req_pool_indices_cpu"):
        if getattr(batch, name, None) is not None:
            shown[name] = getattr(batch, name)[here]
    for name in ("input_ids", "out_cache_loc"):
        parts = torch.split(getattr(batch, name), batch.extend_lens)
        shown[name] = torch.cat([parts[index] for index in requests])
    shown["extend_num_tokens"] = sum(shown["extend_lens"])
    if batch.seq_lens_cpu is not None:
        shown["seq_lens_sum"] = int(shown["seq_lens_cpu"].sum())
    with _showing(batch, shown):
        yield


@contextmanager
def as_computed(batch: Any, claims: dict[int, tuple[int, int]], prompts: dict[int, Any]) -> Iterator[None]:
    """Show ``batch`` as if nothing had been moved for these requests: they compute all of their claims.

    For when it cannot be made with rows. There is one sequence per request, as in any batch of SGLang's. It holds more
    tokens than SGLang planned for, once.
    """
    more = [end - start for start, end in (claims.get(index, (0, 0)) for index in range(len(batch.extend_lens)))]
    shown: dict[str, Any] = {
        "prefix_lens": [prefix - added for prefix, added in zip(batch.prefix_lens, more, strict=True)],
        "extend_lens": [length + added for length, added in zip(batch.extend_lens, more, strict=True)],
        "extend_num_tokens": sum(batch.extend_lens) + sum(more),
    }
    shown["input_ids"], shown["out_cache_loc"] = _tokens(batch, {at: (claims[at],) for at in claims}, prompts)
    if batch.extend_logprob_start_lens is not None:
        starts = zip(batch.extend_logprob_start_lens, more, strict=True)
        shown["extend_logprob_start_lens"] = [start + added for start, added in starts]
    with _showing(batch, shown):
        yield


@contextmanager
def _showing(batch: Any, fields: dict[str, Any]) -> Iterator[None]:
    saved = {name: getattr(batch, name) for name in fields}
    try:
        for name, value in fields.items():
            setattr(batch, name, value)
        yield
    finally:
        for name, value in saved.items():
            setattr(batch, name, value)


@contextmanager
def running(forward_batch: Any) -> Iterator[None]:
    """While the model runs ``forward_batch``. Afterwards it has one entry per request again, for sampling."""
    global _of_running_batch
    view: RequestView | None = getattr(forward_batch, MARK, None)
    if view is None:
        yield
        return
    _of_running_batch = view
    try:
        yield
    finally:
        _of_running_batch = None
        _show_requests(forward_batch, view)


def as_requests(forward_batch: Any) -> Any:
    """The batch that runs, for what comes behind attention: one entry per request."""
    if _of_running_batch is None:
        return forward_batch
    merged = copy.copy(forward_batch)
    _show_requests(merged, _of_running_batch)
    return merged


def _show_requests(forward_batch: Any, view: RequestView) -> None:
    for name in _SHOWN:
        setattr(forward_batch, name, getattr(view, name))
    setattr(forward_batch, MARK, None)


def for_sampling(forward_batch: Any, requests: Sequence[Any], view: RequestView) -> None:
    """What SGLang made per sequence and sampling reads per request. ``requests``: the batch's own."""
    sampling = getattr(forward_batch, "sampling_info", None)
    if sampling is not None and getattr(sampling, "grammars", None) is not None:
        sampling.grammars = [request.grammar for request in requests]
    for name in _LISTS_FOR_SAMPLING:
        value = getattr(forward_batch, name, None)
        if value is not None and len(value) == len(view.owners):
            setattr(forward_batch, name, [value[at] for at in view.own_sequences()])


def _sequences_of(batch: Any, rows: dict[int, Rows]) -> list[_Sequence]:
    """In their order: the rows of a request in front of its own."""
    made: list[_Sequence] = []
    for index, (prefix, length) in enumerate(zip(batch.prefix_lens, batch.extend_lens, strict=True)):
        made += [_Sequence(index, start, end - start, True) for start, end in rows.get(index, ())]
        made.append(_Sequence(index, prefix, length, False))
    return made


def _request_view(batch: Any, rows: dict[int, Rows], owners: list[int]) -> RequestView:
    added = [sum(end - start for start, end in rows.get(index, ())) for index in range(len(batch.extend_lens))]
    lengths = [length + more for length, more in zip(batch.extend_lens, added, strict=True)]
    starts = batch.extend_logprob_start_lens
    return RequestView(
        batch_size=len(batch.seq_lens),
        seq_lens=batch.seq_lens,
        seq_lens_cpu=batch.seq_lens_cpu,
        req_pool_indices=batch.req_pool_indices,
        extend_seq_lens=_on_device(np.array(lengths, np.int32), batch.seq_lens.device),
        extend_seq_lens_cpu=lengths,
        extend_logprob_start_lens_cpu=None
        if starts is None
        else [start + more for start, more in zip(starts, added, strict=True)],
        owners=owners,
    )


def _shown(batch: Any, sequences: list[_Sequence], rows: dict[int, Rows], prompts: dict[int, Any]) -> dict[str, Any]:
    """Every field of a ScheduleBatch that has an entry per sequence or per token, as it is with rows."""
    own = np.array([each.owner for each in sequences])
    # Own lengths stay as they are: with overlapped scheduling the host may not know them yet.
    row_ends = np.array([each.prefix + each.length if each.is_row else -1 for each in sequences])
    owners_cpu = torch.from_numpy(own)
    owners, device_ends = _on_device(np.stack((own, row_ends)), batch.seq_lens.device)
    shown: dict[str, Any] = {
        "reqs": [batch.reqs[each.owner] for each in sequences],
        "prefix_lens": [each.prefix for each in sequences],
        "extend_lens": [each.length for each in sequences],
        "extend_num_tokens": sum(each.length for each in sequences),
        "req_pool_indices": batch.req_pool_indices[owners],
        "seq_lens": _with_row_ends(batch.seq_lens, owners, device_ends),
        "orig_seq_lens": batch.orig_seq_lens[owners],
    }
    if batch.seq_lens_cpu is not None:
        shown["seq_lens_cpu"] = _with_row_ends(batch.seq_lens_cpu, owners_cpu, torch.from_numpy(row_ends))
        shown["seq_lens_sum"] = int(shown["seq_lens_cpu"].sum())
    if getattr(batch, "req_pool_indices_cpu", None) is not None:
        shown["req_pool_indices_cpu"] = batch.req_pool_indices_cpu[owners_cpu]
    if batch.extend_logprob_start_lens is not None:
        shown["extend_logprob_start_lens"] = [
            each.length if each.is_row else batch.extend_logprob_start_lens[each.owner] for each in sequences
        ]
    if batch.multimodal_inputs is not None:
        shown["multimodal_inputs"] = [batch.multimodal_inputs[each.owner] for each in sequences]
    shown["input_ids"], shown["out_cache_loc"] = _tokens(batch, rows, prompts)
    return shown


def _with_row_ends(lengths: Tensor, owners: Tensor, row_ends: Tensor) -> Tensor:
    row_ends = row_ends.to(lengths.dtype)
    return torch.where(row_ends < 0, lengths[owners], row_ends)


def _tokens(batch: Any, rows: dict[int, Rows], prompts: dict[int, Any]) -> tuple[Tensor, Tensor]:
    """Ids of all tokens and the slots that they are written to, rows in front of their request's own."""
    if not rows:
        return batch.input_ids, batch.out_cache_loc
    places = {index: np.concatenate([np.arange(*run) for run in runs]) for index, runs in rows.items()}
    ids = np.concatenate([np.asarray(prompts[index])[where] for index, where in places.items()])
    owners = np.concatenate([np.full(where.size, index) for index, where in places.items()])
    packed = _on_device(np.stack((ids, owners, np.concatenate(list(places.values())))), batch.input_ids.device)
    table = batch.req_to_token_pool.req_to_token
    slots = table[batch.req_pool_indices[packed[1]], packed[2]]
    sizes = [where.size for where in places.values()]
    return (
        _in_front(batch.input_ids, batch.extend_lens, dict(zip(places, torch.split(packed[0], sizes), strict=True))),
        _in_front(batch.out_cache_loc, batch.extend_lens, dict(zip(places, torch.split(slots, sizes), strict=True))),
    )


def _in_front(own: Tensor, lengths: list[int], of_rows: dict[int, Tensor]) -> Tensor:
    """``own``, cut by request, with what belongs to the requests' rows in front of each part."""
    pieces: list[Tensor] = []
    for index, part in enumerate(torch.split(own, lengths)):
        if index in of_rows:
            pieces.append(of_rows[index].to(own.dtype))
        pieces.append(part)
    return torch.cat(pieces)


def _on_device(values: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    there = torch.from_numpy(np.ascontiguousarray(values))
    if device.type != "cuda":
        return there.to(device)
    return there.pin_memory().to(device, non_blocking=True)
