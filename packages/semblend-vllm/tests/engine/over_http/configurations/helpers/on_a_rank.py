"""What tests do inside a worker's process. vLLM calls these there with its worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semblend_core.kv import RotationProof

_undo: list[Any] = []


def _side() -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group().worker_side


def _rank() -> int:
    from vllm.distributed import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())


def state(worker: Any, tenant: str) -> dict[str, Any]:
    side = _side()
    held = side.held_by(tenant)
    return {"rank": _rank(), "kv_heads": side._memory.shape.kv_heads, "stored": held.stored, "bytes": held.bytes}


def save_donor(worker: Any, namespace: Any, donor_id: str, tokens: int, folder: str) -> None:
    """K and V [layers, tokens, heads, components] of a donor as this rank holds it."""
    from safetensors.torch import save_file

    from semblend_core import Span

    span = Span(0, donor_id, 0, tokens)
    fetch = _side()._fetched.begin(namespace.for_rank(_rank()), [span])
    ((donor, _),) = fetch.donors[donor_id].parts()
    keys, values = (part.contiguous() for part in (donor.keys, donor.values))
    save_file({"keys": keys, "values": values}, Path(folder) / f"rank-{_rank()}.safetensors")


def break_at(worker: Any, rank: int, what: str) -> None:
    """From now on ``what`` fails at one rank, until ``mend``."""
    if _rank() == rank:
        side = _side()
        owner = {"acquire": side._store}.get(what, side._memory)
        _undo.append((owner, what))
        setattr(owner, what, _nothing if what == "acquire" else _fail)


def break_keys_at(worker: Any, rank: int) -> None:
    """From now on one rank reads keys of other places, and tests itself anew."""
    if _rank() == rank:
        side = _side()
        memory = side._memory
        side._proof = RotationProof(memory._rotation)
        gather = memory.gather

        def wrong(block_ids: Any, tokens: int) -> Any:
            donor = gather(block_ids, tokens)
            donor.keys.copy_(donor.keys.flip(1).clone())
            return donor

        _undo.append((memory, "gather"))
        memory.gather = wrong


def mend(worker: Any) -> None:
    while _undo:
        delattr(*_undo.pop())


def _fail(*_: Any, **__: Any) -> None:
    raise OSError("broken by a test")


def _nothing(*_: Any, **__: Any) -> None:
    return None
