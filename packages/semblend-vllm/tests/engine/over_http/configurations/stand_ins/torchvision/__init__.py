"""torchvision would bring a CUDA build of torch with it. Qwen2-VL's code wants it to be there; nothing calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

__version__ = "0.28.0"


def any_name_of(module: str) -> Callable[[str], Any]:
    """A module's ``__getattr__``: every name is there, and calling it is a mistake."""

    def lookup(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def called(*_: Any, **__: Any) -> NoReturn:
            raise NotImplementedError(f"{module}.{name} has no place in a test on a CPU")

        return called

    return lookup
