"""Configurations of vLLM that need processes of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HELPERS = Path(__file__).with_name("helpers")
ONE_THREAD_EACH = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
"""By itself vLLM gives each rank a memory node, and most machines have one."""
IMPORTED = (
    "vllm.entrypoints.llm",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "semblend_vllm.connector",
)
"""To import vLLM takes longer than most of what is asked of it."""


@pytest.fixture(scope="session")
def helpers(environment: None) -> Iterator[None]:
    sys.path.insert(0, str(HELPERS))
    yield
    sys.path.remove(str(HELPERS))


@pytest.fixture(scope="session")
def texts(helpers: None) -> Any:
    import texts

    return texts


@pytest.fixture(scope="session")
def one_thread_each() -> dict[str, str]:
    return ONE_THREAD_EACH


@pytest.fixture(scope="session")
def split_model(helpers: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that two ranks can share."""
    from semblend_core.testing import write_split_model

    return write_split_model(tmp_path_factory.mktemp("split") / "model")


@pytest.fixture(scope="session")
def run_program(helpers: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """``run_program(name, *arguments)``: what a program in ``helpers`` found.

    ``alone``: it imports vLLM itself.
    """
    from semblend_core.testing import run_program as found_by

    def found(name: str, *arguments: str, alone: bool = False) -> dict[str, Any]:
        # Workers in other processes import the helpers too.
        path = os.pathsep.join([str(HELPERS), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {"PYTHONPATH": path, **ONE_THREAD_EACH}
        imported = () if alone else IMPORTED
        folder = tmp_path_factory.mktemp(name)
        return found_by(HELPERS / f"{name}.py", folder, *arguments, imported=imported, **variables)

    return found


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the engine with two ranks leaves, and another one finds."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="session")
def two_ranks(run_program: Callable[..., dict[str, Any]], split_model: Path, disk: Path) -> dict[str, Any]:
    return run_program("two_ranks", str(split_model), str(disk))


@pytest.fixture(scope="session")
def answer() -> Callable[[dict[str, Any]], Any]:
    """As a program's engine gave it, before it was written down."""

    def read(told: dict[str, Any]) -> Any:
        by_token = tuple({int(token): value for token, value in step.items()} for step in told["logprobs"])
        return SimpleNamespace(**told | {"logprobs": by_token})

    return read
