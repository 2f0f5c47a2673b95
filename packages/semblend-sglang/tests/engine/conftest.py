"""The engine tests' ground: SGLang's configuration in this process, and one real server for those that need one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semblend_sglang.compat.versions import installed_version

SETTINGS = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # Times on a busy test machine are not what is tested; nor whether reuse pays with so small a model.
    "SEMBLEND_LOOKUP_BUDGET_MS": "10000",
    "SEMBLEND_COST_GATE": "0",
    "SEMBLEND_SHARING": "all",
    "SEMBLEND_CACHED_TOKENS": "exact",
    "SEMBLEND_COST_DIR": "none",
    # Answers are compared where a test asks for it.
    "SEMBLEND_QUALITY_SHARE": "0",
    # No test but the one for it asks for an opening so often.
    "SEMBLEND_EXACT_AFTER": "4",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
}
os.environ.update({name: value for name, value in SETTINGS.items() if name not in os.environ})


def pytest_report_header() -> str:
    version = installed_version() or "that is not installed: they will fail"
    return f"semblend-sglang's engine tests run in SGLang {version}"


@pytest.fixture(scope="session")
def model_folder() -> Path:
    from semblend_core.reference import default_model_folder

    return Path(default_model_folder())


@pytest.fixture(scope="session")
def shallow_folder() -> Path:
    """Of a model whose answers mean nothing."""
    from semblend_core.testing import shallow_model_folder

    return shallow_model_folder()


@pytest.fixture(scope="session")
def configured(shallow_folder: Path) -> None:
    """SGLang's parts read their configuration from the process."""
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import ServerArgs

    publish(
        ServerArgs(model_path=str(shallow_folder), device="cpu", attention_backend="torch_native", dtype="float32"),
        role="scheduler",
    )


@pytest.fixture
def new_rig(configured: None) -> Callable[..., Any]:
    from rig import Rig

    return Rig


@pytest.fixture
def new_tiered_rig(configured: None) -> Iterator[Callable[..., Any]]:
    """The same with SGLang's hierarchical cache; closed at the end."""
    from semblend_sglang.compat.generations import takes_checkpoints

    if not takes_checkpoints():
        pytest.skip("the hierarchical cache is supported from SGLang 0.5.22 on")
    from tiered_rig import TieredRig

    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(TieredRig(**options))
        return made[-1]

    yield make
    for rig in reversed(made):
        rig.close()
