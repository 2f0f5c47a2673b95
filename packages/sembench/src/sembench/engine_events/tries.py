"""One request that engines served more than once: a gateway tried again, or two files tell of it."""

from __future__ import annotations

from collections.abc import Sequence

from sembench.schema import EngineRequest


def fold_tries(tries: Sequence[EngineRequest]) -> EngineRequest:
    """What is known of the request: where its tries differ nobody knows which of them the client got."""
    last = tries[-1]
    known = {each.confirmed_tokens for each in tries if each.confirmed_tokens is not None}
    return last if len(tries) == 1 else last.model_copy(update={"confirmed_tokens": _only(known)})


def _only(values: set[int]) -> int | None:
    return next(iter(values)) if len(values) == 1 else None
