"""SGLang's compiled kernels exist for GPUs only. With ``torch_native`` attention its CPU engine calls none of them.

On ARM its start calls two that set the machine up: one binds OpenMP's threads to cores, the other makes room for the
all-reduce among several processes. The tests' one process wants neither, so here they do nothing.
"""

from __future__ import annotations

import torch
from never_called import any_name_of

__getattr__ = any_name_of("sgl_kernel")

_SET_UP = {
    "init_cpu_threads_env(str cpu_ids) -> str": lambda cpu_ids: f"not bound to {cpu_ids}",
    "initialize(int size, int rank) -> ()": lambda size, rank: None,
}

_operators = torch.library.Library("sgl_kernel", "FRAGMENT")
for _schema, _function in _SET_UP.items():
    _operators.impl(_operators.define(_schema), _function, "CompositeExplicitAutograd")
