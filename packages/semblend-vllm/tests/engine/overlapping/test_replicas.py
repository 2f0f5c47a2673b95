"""Data-parallel replicas are told apart, also where vLLM tells each that it is the only one."""

from __future__ import annotations

import pytest
from vllm.config import ParallelConfig

from semblend_vllm.compat.support import replica_of


@pytest.mark.parametrize("replica", [0, 1, 3])
def test_a_replica_knows_its_number(replica: int) -> None:
    config = ParallelConfig(data_parallel_size=4, data_parallel_rank=replica)
    assert replica_of(config) == replica


def test_also_one_that_shares_no_weights_with_others() -> None:
    config = ParallelConfig(data_parallel_size=4, data_parallel_rank=3)
    if not hasattr(config, "data_parallel_index"):
        pytest.skip("this vLLM lets such replicas know of each other")
    alone = getattr(config, "reconfigure_for_independent_dp_rank", None)
    if alone is not None:
        alone()
    else:
        config.data_parallel_size, config.data_parallel_rank = 1, 0
    assert replica_of(config) == 3
