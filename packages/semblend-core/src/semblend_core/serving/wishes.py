"""What one request asks of SemBlend, in the parameters that its engine hands through."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from semblend_core.settings import Settings

Mode: TypeAlias = Literal["on", "off", "discovery"]


@dataclass(frozen=True, slots=True)
class Wish:
    """``"on"``, ``"off"``, ``"discovery"`` or ``{"mode": ..., "capture": true or false}`` under ``PARAMETER``."""

    PARAMETER: ClassVar[str] = "semblend"

    mode: Mode = "on"
    """``off``: not looked up and no donor. ``discovery``: looked up, nothing loaded."""
    capture: bool | None = None
    """Whether its prompt shall become a donor; None: the settings decide."""

    @classmethod
    def among(cls, parameters: object) -> Wish:
        """The wish in a request's ``parameters``. What is not understood counts as off, which harms nobody."""
        wish: Any = parameters.get(cls.PARAMETER, "on") if isinstance(parameters, Mapping) else "on"
        mode, capture = (wish.get("mode", "on"), wish.get("capture")) if isinstance(wish, Mapping) else (wish, None)
        if mode not in ("on", "discovery") or not isinstance(capture, bool | None):
            return OFF
        return cls(mode, capture)

    def makes_donor(self, settings: Settings) -> bool:
        """Whether this prompt is wanted as a donor. Ask once per prompt: with ``capture=sampled`` the dice decide."""
        if not settings.enabled:
            return False
        if self.capture is not None:
            return self.capture
        return settings.capture == "all" or (settings.capture == "sampled" and random.random() < settings.capture_share)


OFF = Wish("off", capture=False)
