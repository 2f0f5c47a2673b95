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

    from triton.runtime import interpreter

    make_tensors_work = interpreter._patch_lang_tensor

    def with_numbers(tensor: Any, scope: Any) -> None:
        """Triton 3.6 makes no number of a loaded one with today's numpy, and loops need it."""
        make_tensors_work(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang_tensor", with_numbers)
        patch.setattr("triton.runtime.interpreter._convert_float", convert_as_hardware_does)
        patch.setattr("triton.runtime.interpreter.ReduceOps.generic_reduce", reduce_at_once)
        yield load


@pytest.fixture(scope="session")
def ptx_for_hopper() -> Callable[[Any, dict[str, Any]], str]:
    """Compiles a kernel as a launch with these arguments would, for a GPU that need not be there."""
    triton = pytest.importorskip("triton")
    from torch import Tensor
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from semblend_core.kv.triton_rows import COMPILE_OPTIONS, WARPS

    def compiled(kernel: Any, arguments: dict[str, Any]) -> str:
        signature, constants, hints = {}, {}, {}
        for index, parameter in enumerate(kernel.params):
            argument = arguments[parameter.name]
            if parameter.is_constexpr:
                signature[parameter.name], constants[parameter.name] = "constexpr", argument
                continue
            is_pointer = isinstance(argument, Tensor)
            signature[parameter.name] = f"*{TRITON_TYPES[str(argument.dtype)]}" if is_pointer else "i32"
            address = argument.data_ptr() if is_pointer else argument
            if address % 16 == 0 and not parameter.do_not_specialize:  # What a launch finds out by itself.
                hints[(index,)] = [["tt.divisibility", 16]]
        program = ASTSource(kernel, signature, constants, hints)
        options = {"num_warps": WARPS, **COMPILE_OPTIONS}
        return str(triton.compile(program, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])

    return compiled


def reduce_at_once(reduce: Any, given: Any) -> Any:
    """The kernels' only reductions, which would be done one number at a time."""
    if reduce.combine_fn.fn.__name__ == "larger":
        return reduce.min_max(given[0], np.max)
    return reduce.sum(given[0])


TRITON_TYPES = {
    "torch.float32": "fp32",
    "torch.float16": "fp16",
    "torch.bfloat16": "bf16",
    "torch.float8_e4m3fn": "fp8e4nv",
    "torch.float8_e5m2": "fp8e5",
    "torch.int64": "i64",
    "torch.int32": "i32",
    "torch.uint8": "u8",
}


def convert_as_hardware_does(data: npt.NDArray[Any], given: Any, wanted: Any, rounding: Any) -> npt.NDArray[Any]:
    """To nearest even. The interpreter's own conversion cuts bfloat16 off and drops carries of fp8."""
    import torch

    types = {short: getattr(torch, name.removeprefix("torch.")) for name, short in TRITON_TYPES.items()}
    carrier = {1: np.uint8, 2: np.int16, 4: np.int32}
    source, target = (types[kind.name] for kind in (given, wanted))
    bits = torch.from_numpy(np.ascontiguousarray(data).view(carrier[source.itemsize]))
    converted = bits.view(source).to(target).view(getattr(torch, np.dtype(carrier[target.itemsize]).name))
    result: npt.NDArray[Any] = converted.numpy().view(f"uint{8 * target.itemsize}")
    return result.reshape(data.shape)
