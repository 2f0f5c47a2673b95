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
    """Whether its prompt may become a donor; None: it does not say. A request asks for less than the settings allow,
    never for more: with ``capture=hinted`` they allow what is asked for."""

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
        if not settings.enabled or self.capture is False:
            return False
        if settings.capture == "hinted":
            return self.capture is True
        return settings.capture == "all" or random.random() < settings.capture_share


OFF = Wish("off", capture=False)
