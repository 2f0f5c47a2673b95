"""Prefill attention and captured prefills: where rows are sequences like any other, and what has to be asked for that.

A row's slots are read by later sequences of the same batch. So each layer must store the new tokens of all sequences
before any kernel reads a prefix, and what SemBlend does between the two must run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from semblend_sglang.settings import SglangSettings

STORES_FIRST = {
    "torch_native": "set_kv_buffer in front of its loop over the sequences",
    "triton": "set_kv_buffer in front of its kernel; latents are stored by the model, in front of either form of MLA",
    "fa3": "set_kv_buffer in front of flash_attn_with_kvcache, which reads prefix and new tokens from the pool",
    "fa4": "the class and the order of fa3, with another kernel",
    "trtllm_mha": "set_kv_buffer in front of its kernels, which read the pool by pages, or copies made behind it",
    "flashinfer": "its paged form stores first, and is asked for while rows run; latents are always stored first",
}
"""Prefill attention that rows can run with, and why. Read in ``forward_extend`` of SGLang 0.5.17 to 0.5.23.

``trtllm_mha`` stores quantised KV in a kernel of its own, and such pools are refused. Others, as ``trtllm_mla``,
``flashmla``, ``cutlass_mla``, ``flex_attention`` and those of other platforms, were not read for it."""

ATTENDS_BETWEEN_GRAPHS = ("breakable", "tc_piecewise")
"""SGLang's captured prefills in which attention runs between graphs, as code, with what the batch at hand says.

There rows need nothing else than in an eager prefill, and the hooks on attention run: a layer is corrected, and looked
at, behind the graph that computed it, also where that graph has stored its KV. ``full`` captures attention too."""


def why_attention_unsupported(runner: Any) -> str | None:
    """``runner``: SGLang's ModelRunner."""
    name = getattr(runner, "prefill_attention_backend_str", None)
    if name not in STORES_FIRST:
        return (
            f"prefill attention by {name} may read KV before it is written, or was never read for it: choose one of "
            f"{', '.join(STORES_FIRST)}, as with --attention-backend triton"
        )
    if name == "flashinfer" and not getattr(runner, "use_mla_backend", False) and _two_forms(runner) is None:
        return (
            "this SGLang's FlashInfer attention cannot be asked to store KV before it attends (use_paged): choose "
            "another, as with --attention-backend triton"
        )
    return None


@contextmanager
def storing_first(runner: Any, has_rows: bool) -> Iterator[None]:
    """While ``runner`` runs a batch: FlashInfer takes its paged form if there are rows.

    Its ragged form attends to new tokens and to prefixes, and stores last. SGLang decides which one it takes when it
    makes the batch's metadata. That happens inside of this.
    """
    backend = _two_forms(runner) if has_rows else None
    if backend is None:
        yield
        return
    before, backend.use_paged = backend.use_paged, True
    try:
        yield
    finally:
        backend.use_paged = before


def replays_rows(graphs: Any, forward_batch: Any) -> bool:
    """Whether a batch with rows may replay what ``graphs``, SGLang's PrefillCudaGraphRunner, has captured."""
    if not _replays_are_wanted():
        return False
    if graphs.prefill_backend_name not in ATTENDS_BETWEEN_GRAPHS:
        return False
    # A model with latents stores them, and reads prefixes back from the pool, in front of attention: inside a graph.
    if getattr(graphs.model_runner, "use_mla_backend", True):
        return False
    # Its buffers have a place per request that SGLang may run. Claims are cut to that, so this is a second lock.
    return bool(forward_batch.batch_size <= graphs.max_bs)


@cache
def _replays_are_wanted() -> bool:
    """By default they are: on an H200 answers strayed from cold ones by the same KL as those of eager prefills."""
    return SglangSettings.from_env(os.environ).replay_rows


def _two_forms(runner: Any) -> Any | None:
    """FlashInfer's attention over keys and values, where prefills use it."""
    backend = getattr(runner, "attn_backend", None)
    # Where prefill and decode have different backends, one object holds both. FlashInfer has a name by that name.
    inner = getattr(backend, "prefill_backend", None)
    backend = backend if inner is None or isinstance(inner, str) else inner
    return backend if isinstance(getattr(backend, "use_paged", None), bool) else None
