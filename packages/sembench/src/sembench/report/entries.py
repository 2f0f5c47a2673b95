"""Parts of a result that another version may have written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)


def read_entries(entries: Iterable[Any] | None, model: type[Model]) -> list[Model] | None:
    """None where an entry is not readable."""
    try:
        return [model.model_validate(entry) for entry in entries or ()]
    except ValidationError:
        return None
