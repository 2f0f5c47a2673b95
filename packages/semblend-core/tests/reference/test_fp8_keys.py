"""The self-test in fp8 on real weights: SmolLM2's keys may be moved, the same with Qwen2.5's biases may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from semblend_core import SelfTestResult, TokenIds

if TYPE_CHECKING:
    import torch

    from semblend_core.kv import DonorKv
    from semblend_core.reference import ReferenceEngine


@pytest.fixture(scope="module")
def tokens(tokens_of: Callable[..., TokenIds]) -> TokenIds:
    return tokens_of("harbour", "orchard", "telescope", "railway")


@pytest.fixture(scope="module")
def computed(engine: ReferenceEngine, tokens: TokenIds) -> DonorKv:
    return engine.capture(engine.prefill(tokens).workspace, tokens.size)


def judged(engine: ReferenceEngine, kv: DonorKv, tokens: TokenIds, dtype: torch.dtype) -> SelfTestResult:
    from semblend_core.kv import DonorKv, RotationProof, narrow
    from semblend_core.serving.worker import proof

    assert kv.values is not None
    stored = DonorKv(narrow(kv.keys, dtype), narrow(kv.values, dtype))
    proving = RotationProof(*[engine.rotation] * kv.layers)
    for _ in range(3):
        proof.judge(proving, stored, tokens)
    return proving.result


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_keys_without_large_biases_may_be_moved_in_fp8(
    engine: ReferenceEngine, computed: DonorKv, tokens: TokenIds, kind: str
) -> None:
    import torch

    result = judged(engine, computed, tokens, getattr(torch, kind))
    assert result.passed, result.says


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_keys_with_large_biases_may_be_moved_in_bfloat16_only(
    engine: ReferenceEngine, computed: DonorKv, tokens: TokenIds, kind: str
) -> None:
    """As Qwen2.5-Coder-1.5B has them in layer 0: 50 to 350, in the slowest seventh of the bands."""
    import torch

    from semblend_core.kv import DonorKv

    bands = engine.rotation.size // 2
    bias = torch.zeros(engine.rotation.key_dim)
    bias[bands - 5 : bands] = torch.linspace(50, 350, 5)
    keys = computed.keys.clone()
    turned = engine.rotation.rotate(bias.expand(*keys.shape[1:]).contiguous(), np.arange(tokens.size))
    keys[0] += turned.to(keys)
    result = judged(engine, DonorKv(keys, computed.values), tokens, getattr(torch, kind))
    assert (result.passed, result.failed) == (kind == "bfloat16", kind != "bfloat16"), result.says
