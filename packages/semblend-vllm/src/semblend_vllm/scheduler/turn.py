"""An operator's commands come on threads of their own, and wait until vLLM's scheduler is between two calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class HasTurn(Protocol):
    turn: threading.RLock
    """Held while vLLM's scheduler is at work."""


Half = TypeVar("Half", bound=HasTurn)


def in_turn(
    method: Callable[Concatenate[Half, Arguments], Result],
) -> Callable[Concatenate[Half, Arguments], Result]:
    """For calls of vLLM's own scheduler, which takes no turn for a whole step as ours does."""

    def waiting(half: Half, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with half.turn:
            return method(half, *args, **kwargs)

    return wraps(method)(waiting)
