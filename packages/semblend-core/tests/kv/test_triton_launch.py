"""A bound launch asks Triton for the compiled kernel once."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `gpu`")
pytest.importorskip("triton", reason="needs the extra `gpu`")

import torch

from semblend_core.kv.triton_rows import Launch

GRID = (3, 2, 1)


class Kernel:
    """Stands for a jitted kernel, and for what it compiles to."""

    arg_names = ("pool", "layer", "SIZE")

    def __init__(self, compiles: bool) -> None:
        self.compiles = compiles
        self.calls: list[Any] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        assert grid == GRID

        def call(*arguments: Any, **named: Any) -> Kernel | None:
            self.calls.append(arguments or named)
            return self if self.compiles else None

        return call


def launched(kernel: Kernel) -> list[Any]:
    launch = Launch(kernel, GRID, {"SIZE": 8, "pool": "p"}, "layer", {"num_warps": 4})
    for layer in (5, 6, 1):
        launch(layer)
    return kernel.calls


def test_later_launches_go_to_the_compiled_kernel_with_all_arguments_in_order() -> None:
    first = {"pool": "p", "layer": 5, "SIZE": 8, "num_warps": 4}
    assert launched(Kernel(compiles=True)) == [first, ("p", 6, 8), ("p", 1, 8)]


def test_the_interpreter_is_called_as_it_is_every_time() -> None:
    calls = launched(Kernel(compiles=False))
    assert [call["layer"] for call in calls] == [5, 6, 1]


def test_a_later_launch_takes_the_kernel_that_one_of_its_kind_has_found() -> None:
    kernel = Kernel(compiles=True)

    def launch(pool: torch.Tensor) -> Any:
        Launch(kernel, GRID, {"SIZE": 8, "pool": pool}, "layer", {"num_warps": 4})(5)
        return kernel.calls[-1]

    pool = torch.zeros(16)
    assert isinstance(launch(pool[4:]), dict)
    assert launch(pool[8:]) == (pool[8:].data_ptr(), 5, 8)
    assert isinstance(launch(pool[1:]), dict)  # Not at a multiple of 16 bytes.
    assert isinstance(launch(pool.half()), dict)
