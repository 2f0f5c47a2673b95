"""Triton's interpreter runs kernels without a GPU, on private copies of their modules: others see the compiled ones."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

KERNELS = Path(__file__).parents[2] / "src" / "semblend_core" / "kv"
PACKAGE = "semblend_core.kv"


@pytest.fixture(scope="module")
def interpret() -> Iterator[Callable[..., ModuleType]]:
    """Gives the last of some modules for the interpreter; each sees those before it in place of the compiled ones."""
    pytest.importorskip("triton")

    def load(*names: str) -> ModuleType:
        with pytest.MonkeyPatch.context() as loading:
            loading.setenv("TRITON_INTERPRET", "1")  # Read where a kernel is decorated.
            for name in names:
                spec = importlib.util.spec_from_file_location(f"interpreted_{name}", KERNELS / f"{name}.py")
                assert spec is not None
                assert spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                patch.setitem(sys.modules, spec.name, module)  # Kernels look their globals up by module.
                spec.loader.exec_module(module)
                loading.setitem(sys.modules, f"{PACKAGE}.{name}", module)
        return module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("triton.runtime.interpreter._convert_float", convert_as_hardware_does)
        # The kernels' only reductions are sums, which would be done one number at a time.
        patch.setattr("triton.runtime.interpreter.ReduceOps.generic_reduce", lambda reduce, given: reduce.sum(given[0]))
        yield load


def convert_as_hardware_does(data: npt.NDArray[Any], given: Any, wanted: Any, rounding: Any) -> npt.NDArray[Any]:
    """To nearest even. The interpreter's own conversion cuts bfloat16 off and drops carries of fp8."""
    import torch

    types = {
        "fp32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8e4nv": torch.float8_e4m3fn,
        "fp8e5": torch.float8_e5m2,
    }
    carrier = {1: np.uint8, 2: np.int16, 4: np.int32}
    source, target = (types[kind.name] for kind in (given, wanted))
    bits = torch.from_numpy(np.ascontiguousarray(data).view(carrier[source.itemsize]))
    converted = bits.view(source).to(target).view(getattr(torch, np.dtype(carrier[target.itemsize]).name))
    result: npt.NDArray[Any] = converted.numpy().view(f"uint{8 * target.itemsize}")
    return result.reshape(data.shape)
