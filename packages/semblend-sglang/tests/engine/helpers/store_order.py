"""The program of ``test_store_order.py``: SGLang's own FlashInfer attention over stand-ins for its kernels, on a CPU.

Which form of attention it takes, when it stores KV and what each form reads, is SGLang's code. Only the arithmetic of
the kernels is a stand-in: plain attention by sequence.
"""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from archive import CASES, recipient
from programs import run
from ranked_engine import RankedEngine, import_sglang, in_a_fork
from scenes import FOUR, ONE, asked

from semblend_sglang.compat import hooks


def main(model: str, folder: Path) -> dict[str, Any]:
    import_sglang()
    stand_in()
    sessions = {"asked": as_it_is, "unasked": unasked}
    return {
        name: in_a_fork(session, model, folder / name, SEMBLEND_AUDIT_PATH=str(folder / name))
        for name, session in sessions.items()
    }


def as_it_is(model: str, audit: Path) -> dict[str, Any]:
    engine = started(model, audit)
    found = {case: asked(engine, case) for case in (ONE, FOUR)}
    engine.close()
    return found


def unasked(model: str, audit: Path) -> dict[str, Any]:
    """As if SemBlend did not ask for the form that stores first."""
    hooks.storing_first = lambda *_: nullcontext()
    engine = started(model, audit)
    found = {}
    for case in (ONE, FOUR):
        for donor in CASES[case][0]:
            engine.ask(donor, salt="tenant", tokens=1)
        found[case] = engine.ask(recipient(case), salt="tenant")
    engine.close()
    return found


def started(model: str, audit: Path) -> RankedEngine:
    options = {"prefill_attention_backend": "flashinfer", "decode_attention_backend": "torch_native"}
    return RankedEngine(Path(model), audit, 1, **options)


def stand_in() -> None:
    """For what FlashInfer brings, and for a kernel of SGLang's that gathers slots for it."""
    from sglang.srt.entrypoints import engine
    from sglang.srt.layers.attention import flashinfer_backend as sglangs
    from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator

    engine.assert_pkg_version = lambda *_: None  # FlashInfer is not installed.
    sglangs.BatchPrefillWithPagedKVCacheWrapper = Paged
    sglangs.BatchPrefillWithRaggedKVCacheWrapper = Ragged
    sglangs.BatchDecodeWithPagedKVCacheWrapper = lambda *_, **__: None
    sglangs._safe_merge_state = merge
    sglangs.should_use_tensor_core = lambda **_: False
    KVIndexTranslator.pack_read_stream = pack


class Paged:
    """Queries of each sequence over slots of the pool."""

    is_cuda_graph_enabled = False

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def begin_forward(self, queries: Any, kv: Any, slots: Any, *_: Any, **__: Any) -> None:
        self.queries, self.kv, self.slots = queries.tolist(), kv.tolist(), slots.long()

    def forward(self, q: Any, kv: Any, **how: Any) -> Any:
        return self.forward_return_lse(q, kv, **how)[0]

    def forward_return_lse(self, q: Any, kv: Any, *, causal: bool, sm_scale: float, **_: Any) -> Any:
        of_sequences = ([part[self.slots[start:end]] for part in kv] for start, end in runs(self.kv))
        return attend(q, self.queries, of_sequences, causal, sm_scale)


class Ragged:
    """Queries of each sequence over its own new tokens."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def begin_forward(self, queries: Any, *_: Any, **__: Any) -> None:
        self.queries = queries.tolist()

    def forward(self, q: Any, k: Any, v: Any, **how: Any) -> Any:
        return self.forward_return_lse(q, k, v, **how)[0]

    def forward_return_lse(self, q: Any, k: Any, v: Any, *, causal: bool, sm_scale: float, **_: Any) -> Any:
        of_sequences = ((k[start:end], v[start:end]) for start, end in runs(self.queries))
        return attend(q, self.queries, of_sequences, causal, sm_scale)


def runs(ends: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(ends))


def attend(q: Any, queries: list[int], of_sequences: Any, causal: bool, scale: float) -> tuple[Any, Any]:
    """What is attended to, and how much of it there was: the logarithm of the sum of weights."""
    seen, sums = torch.zeros_like(q), torch.full(q.shape[:2], -torch.inf)
    for (start, end), (k, v) in zip(runs(queries), of_sequences, strict=True):
        if k.shape[0] and end > start:
            share = q.shape[1] // k.shape[1]
            k, v = (part.repeat_interleave(share, 1) for part in (k, v))
            weights = torch.einsum("qhd,khd->hqk", q[start:end], k) * scale
            if causal:
                hidden = torch.ones(weights.shape[1:], dtype=torch.bool).triu(k.shape[0] - (end - start) + 1)
                weights = weights.masked_fill(hidden, -torch.inf)
            sums[start:end] = weights.logsumexp(-1).T
            seen[start:end] = torch.einsum("hqk,khd->qhd", weights.softmax(-1), v)
    return seen, sums


def merge(one: Any, of_one: Any, other: Any, of_other: Any) -> tuple[Any, Any]:
    both = torch.logaddexp(of_one, of_other)
    return one * (of_one - both).exp()[..., None] + other * (of_other - both).exp()[..., None], both


def pack(translator: Any, plan: Any, *, req_pool_indices: Any, seq_lens: Any, out: Any, **_: Any) -> None:
    """The slots of each sequence's first tokens, one sequence behind the other."""
    table = translator.req_to_token
    rows = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    slots = torch.cat([table[row, :length] for row, length in rows])
    out[: slots.numel()] = slots


if __name__ == "__main__":
    run(main)
