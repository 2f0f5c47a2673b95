"""SGLang's compiled kernels exist for GPUs only. With ``torch_native`` attention its CPU engine calls none of them.

On ARM it calls four: one binds OpenMP's threads to cores, one makes room for what several ranks share, and two are the
collectives over that. The first two do nothing here. The others go the way that SGLang takes on other CPUs: over gloo.
"""

from __future__ import annotations

import torch
from never_called import any_name_of

__getattr__ = any_name_of("sgl_kernel")


def _all_reduce(data: torch.Tensor, _operation: int) -> None:
    torch.distributed.all_reduce(data, group=_ranks())


def _all_gather(data: torch.Tensor, dim: int) -> torch.Tensor:
    parts = [torch.empty_like(data) for _ in range(torch.distributed.get_world_size(_ranks()))]
    torch.distributed.all_gather(parts, data.contiguous(), group=_ranks())
    return torch.cat(parts, dim)


def _ranks() -> torch.distributed.ProcessGroup:
    from sglang.srt.distributed import get_tp_group

    group: torch.distributed.ProcessGroup = get_tp_group().device_group
    return group


_CALLED = {
    "init_cpu_threads_env(str cpu_ids) -> str": lambda cpu_ids: f"not bound to {cpu_ids}",
    "initialize(int size, int rank) -> ()": lambda size, rank: None,
    "shm_allreduce(Tensor(a!) data, int op) -> ()": _all_reduce,
    "shm_allgather(Tensor data, int dim) -> Tensor": _all_gather,
}
_LOOKED_UP = (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)
"""Of models that are imported together with Qwen2-VL, whose images the same module prepares. None is called."""

_operators = torch.library.Library("sgl_kernel", "FRAGMENT")
for _schema, _function in _CALLED.items():
    _operators.impl(_operators.define(_schema), _function, "CompositeExplicitAutograd")
for _name in _LOOKED_UP:
    _operators.define(f"{_name}(Tensor x) -> Tensor")
