"""The one error that settings raise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WrongSetting:
    """One value that is not allowed."""

    variable: str
    value: object
    allowed: str
    why: str = ""
    """More than ``allowed`` says, where there is more to say."""

    def __str__(self) -> str:
        shown = repr(self.value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        sentence = f"{self.variable}={shown} is not allowed"
        return f"{sentence}: {self.why}" if self.why else f"{sentence}; allowed: {self.allowed.replace('`', '')}"


class SettingError(ValueError):
    """One or several settings have values that are not allowed. All of them are named."""

    def __init__(self, wrong: Sequence[WrongSetting]) -> None:
        self.wrong = tuple(wrong)
        lines = "\n  ".join(str(each) for each in self.wrong)
        super().__init__(lines if len(self.wrong) == 1 else f"{len(self.wrong)} settings are wrong:\n  {lines}")

    def __reduce__(self) -> tuple[type[SettingError], tuple[tuple[WrongSetting, ...]]]:
        # Engines start workers in other processes and carry their errors home pickled.
        return SettingError, (self.wrong,)
