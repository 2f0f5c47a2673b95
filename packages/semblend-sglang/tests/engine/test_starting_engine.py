"""What fails while an engine starts costs it reuse, and never the start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prometheus_client
import pytest
import torch
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.mem_cache.registry import TreeCacheBuildContext
from sglang.srt.server_args import ServerArgs

from semblend_core import DeclineReason, OutcomeKind, SelfTestState
from semblend_core.serving.tree import SlotPool
from semblend_core.testing import passage
from semblend_sglang import factory

DOCUMENT = passage(2, 400)


@pytest.fixture
def rig(new_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(factory, "why_not_hooked", lambda: None)  # Hooks stay for as long as a process lives.
    monkeypatch.setattr(prometheus_client.REGISTRY, "register", lambda collector: None)
    return new_rig(lookup_budget_ms=600_000.0)


def start(rig: Any, folder: Path) -> None:
    """Give the rig what SGLang would be given at its start."""
    arguments = ServerArgs(
        model_path=str(folder), device="cpu", attention_backend="torch_native", dtype="float32", max_prefill_tokens=4096
    )
    runner = SimpleNamespace(
        prefill_attention_backend_str="torch_native",
        max_running_requests=32,
        lora_manager=None,
        model=torch.nn.Module(),
    )
    rig.tree = factory.build_cache(
        TreeCacheBuildContext(
            server_args=arguments,
            params=rig.parameters,
            is_hybrid_swa=False,
            is_hybrid_ssm=False,
            enable_hierarchical_cache=False,
            disable_radix_cache=False,
            tp_worker=SimpleNamespace(model_runner=runner),
            model_config=ModelConfig(str(folder)),
            tp_size=1,
            tp_rank=0,
            tp_group=None,
        )
    )
    rig.side = rig.tree.semblend


def broken(*_: Any) -> None:
    raise RuntimeError("no compiler here")


def test_kernels_that_do_not_run_are_said_counted_and_never_used(
    rig: Any, shallow_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SlotPool, "warm_up", broken)
    start(rig, shallow_folder)
    assert "kernels do not run" in next(record.message for record in caplog.records if record.levelname == "ERROR")
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    assert rig.serve([*passage(3, 80), *DOCUMENT], "asked").cached_tokens == 0
    stats = rig.side.provider.stats()
    assert stats.self_test is SelfTestState.FAILED
    assert stats.outcomes[OutcomeKind.DISCOVERY_ONLY] == 1
    assert stats.declines[DeclineReason.SELF_TEST_FAILED] == 1


def test_where_it_cannot_start_sglang_runs_without_it(
    rig: Any, shallow_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(factory, "slot_pool_of", broken)
    start(rig, shallow_folder)
    assert rig.side is None
    assert "SemBlend is off" in next(record.message for record in caplog.records if record.levelname == "ERROR")
    assert rig.serve([*passage(3, 80), *DOCUMENT], "asked").cached_tokens == 0
    assert rig.serve([*passage(3, 80), *DOCUMENT], "again").cached_tokens == 479


def test_a_setting_that_cannot_be_stops_the_start(
    rig: Any, shallow_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(factory.PROVIDER_SETTING, "no_such_package:make")
    with pytest.raises(factory.ProviderError, match="no_such_package"):
        start(rig, shallow_folder)
