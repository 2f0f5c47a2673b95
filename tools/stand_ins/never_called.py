"""Names that engines import and that nothing on a CPU may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def any_name_of(package: str) -> Callable[[str], Any]:
    """A module's ``__getattr__``: every name is there, and calling it is a mistake."""

    def lookup(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def called(*args: Any, **kwargs: Any) -> NoReturn:
            raise NotImplementedError(f"{package}.{name} has no place in a test on a CPU")

        return called

    return lookup
