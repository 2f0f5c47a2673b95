"""How far relocated KV strays from computed KV, layer by layer: measured data of one model, never a formula."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = "semblend.layer_profile.v1"


class LayerProfileError(ValueError):
    """A profile file that cannot be used; the message names file and field."""


@dataclass(frozen=True, slots=True)
class LayerProfile:
    model: str
    """Model name and revision the profile was measured with; used for no other."""
    deviation: tuple[float, ...]
    """Mean relative deviation of relocated from computed KV, one value per layer, first layer first."""
    measured_with: str
    """How: data, prompt length, number of samples, date."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise LayerProfileError("field 'model' must name the model the profile was measured with")
        if not self.deviation:
            raise LayerProfileError("field 'deviation' must have a value for every layer")
        for layer, value in enumerate(self.deviation):
            if not (math.isfinite(value) and value >= 0):
                raise LayerProfileError(f"field 'deviation' must be at least 0, got {value} for layer {layer}")

    def recomputed_layers(self, tolerance: float) -> float:
        """Share of layers to compute so that no deeper layer deviates by more than ``tolerance``.

        A token recomputed in a layer must have been recomputed in all layers before it, so the share reaches from the
        first layer to the last one that is out of tolerance.
        """
        beyond = [layer for layer, value in enumerate(self.deviation) if value > tolerance]
        return (beyond[-1] + 1) / len(self.deviation) if beyond else 0.0

    def save(self, path: str | os.PathLike[str]) -> None:
        content = {
            "schema": _SCHEMA,
            "model": self.model,
            "deviation": list(self.deviation),
            "measured_with": self.measured_with,
        }
        Path(path).write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LayerProfile:
        try:
            content = json.loads(Path(path).read_text())
            if content["schema"] != _SCHEMA:
                raise LayerProfileError(f"schema is {content['schema']!r}, expected {_SCHEMA!r}")
            if not isinstance(content["deviation"], list):
                raise LayerProfileError("field 'deviation' must be a list of numbers, one per layer")
            return cls(content["model"], tuple(map(_number, content["deviation"])), content["measured_with"])
        except KeyError as missing:
            raise LayerProfileError(f"{path}: field {missing} is missing") from missing
        except (OSError, ValueError, TypeError) as error:
            raise LayerProfileError(f"{path}: {error}") from error


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise LayerProfileError(f"field 'deviation' must hold numbers, got {value!r}")
    return float(value)
