"""What a setting may be: each kind parses text, checks typed values and says in words what it allows."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction


class NotAllowedError(ValueError):
    """A value that the kind refuses. The text, if any, says why in more words than ``Kind.allowed`` does."""


class Kind(ABC):
    """One sort of value. ``parse`` reads an environment variable, ``check`` a value given in code."""

    @abstractmethod
    def parse(self, text: str) -> object:
        """The value that ``text`` (never empty, already stripped) stands for, or NotAllowedError."""

    @abstractmethod
    def check(self, value: object) -> object:
        """``value`` in its canonical type, or NotAllowedError."""

    @property
    @abstractmethod
    def allowed(self) -> str:
        """What is allowed, to end the sentence 'allowed: ...'."""

    @property
    def brief(self) -> str:
        """``allowed`` for a table whose head explains switches, sizes and units."""
        return self.allowed

    def show(self, value: object) -> str:
        """``value`` as one would write it into the environment."""
        return "" if value is None else str(value)


_FLAG_WORDS: Mapping[str, bool] = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


@dataclass(frozen=True)
class Flag(Kind):
    """On or off."""

    def parse(self, text: str) -> bool:
        if text.lower() not in _FLAG_WORDS:
            raise NotAllowedError
        return _FLAG_WORDS[text.lower()]

    def check(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise NotAllowedError
        return value

    @property
    def allowed(self) -> str:
        return "`1`, `true`, `yes`, `on` or `0`, `false`, `no`, `off`"

    @property
    def brief(self) -> str:
        return "`0`, `1`"

    def show(self, value: object) -> str:
        return "1" if value else "0"


@dataclass(frozen=True)
class Choice(Kind):
    """One of a few words."""

    words: tuple[str, ...]

    def parse(self, text: str) -> str:
        return self.check(text.lower())

    def check(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise NotAllowedError
        return value

    @property
    def allowed(self) -> str:
        return ", ".join(f"`{word}`" for word in self.words)


@dataclass(frozen=True)
class Text(Kind):
    """Any text; ``meaning`` says what it should be."""

    meaning: str

    def parse(self, text: str) -> str:
        return text

    def check(self, value: object) -> str:
        if not isinstance(value, str):
            raise NotAllowedError
        return value

    @property
    def allowed(self) -> str:
        return self.meaning


_TENANT = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class TenantIds(Kind):
    """Some tenants, or all of them."""

    def parse(self, text: str) -> tuple[str, ...]:
        return self.check(tuple(part.strip().lower() for part in text.split(",")))

    def check(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, tuple) or not all(isinstance(each, str) for each in value):
            raise NotAllowedError
        if value != ("all",) and not all(_TENANT.fullmatch(each) for each in value):
            raise NotAllowedError
        return value

    @property
    def allowed(self) -> str:
        return "`all`, or ids of 16 hex digits separated by commas, as `python -m semblend_core.control id` prints them"

    @property
    def brief(self) -> str:
        return "`all`, or [ids](tenants.md#a-tenants-id) separated by commas"

    def show(self, value: object) -> str:
        return ",".join(value) if isinstance(value, tuple) else ""


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number in [low, high]; no upper end where ``high`` is None."""

    low: int
    high: int | None = None

    def parse(self, text: str) -> int:
        try:
            return self.check(int(text))
        except ValueError:
            raise NotAllowedError from None

    def check(self, value: object) -> int:
        # True is an int to Python; to a reader of the settings it is a mistake.
        if isinstance(value, bool) or not isinstance(value, int):
            raise NotAllowedError
        if value < self.low or (self.high is not None and value > self.high):
            raise NotAllowedError
        return value

    @property
    def allowed(self) -> str:
        return f"whole number, {self.brief}"

    @property
    def brief(self) -> str:
        return (
            f"{self.show(self.low)} or more"
            if self.high is None
            else f"{self.show(self.low)} to {self.show(self.high)}"
        )


@dataclass(frozen=True)
class Number(Kind):
    """A finite number in [low, high], or above ``low`` where ``low_excluded``."""

    low: float
    high: float | None = None
    low_excluded: bool = False

    def parse(self, text: str) -> float:
        try:
            return self.check(float(text))
        except ValueError:
            raise NotAllowedError from None

    def check(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise NotAllowedError
        # False for NaN and infinity, and no overflow on an int that no float can hold.
        if not abs(value) <= sys.float_info.max:
            raise NotAllowedError
        if value < self.low or (self.low_excluded and value == self.low):
            raise NotAllowedError
        if self.high is not None and value > self.high:
            raise NotAllowedError
        return float(value)

    @property
    def allowed(self) -> str:
        return f"number, {self.brief}"

    @property
    def brief(self) -> str:
        if self.low_excluded:
            return f"above {self.low:g}" + (f", up to {self.high:g}" if self.high is not None else "")
        return f"{self.low:g} or more" if self.high is None else f"{self.low:g} to {self.high:g}"

    def show(self, value: object) -> str:
        return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


_UNITS: Mapping[str, int] = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
}
_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class ByteSize(Whole):
    """A number of bytes, written plainly or with a decimal (kB, MB, ...) or binary (KiB, MiB, ...) unit."""

    low: int = 1

    def parse(self, text: str) -> int:
        match = _SIZE.fullmatch(text)
        # A bare K, M or G means 1000 to some tools and 1024 to others, so it is refused, not guessed.
        if match is None or match[2].lower() not in _UNITS:
            raise NotAllowedError
        # Fractions, because 1.1 * 2**30 in floating point is not what was written.
        return self.check(int(Fraction(match[1]) * _UNITS[match[2].lower()]))

    @property
    def allowed(self) -> str:
        return f"bytes, such as `512MiB`, `2GB` or a plain integer; {super().brief}"

    @property
    def brief(self) -> str:
        return f"size, {super().brief}"

    def show(self, value: object) -> str:
        if not isinstance(value, int):
            return str(value)
        for letter, power in (("T", 4), ("G", 3), ("M", 2), ("K", 1)):
            if value and value % 1024**power == 0:
                return f"{value // 1024**power}{letter}iB"
        return str(value)


@dataclass(frozen=True)
class Never(Kind):
    """``kind``, or ``never``, which is None."""

    kind: Kind = field(repr=False)

    def parse(self, text: str) -> object:
        return None if text.strip().lower() == "never" else self.kind.parse(text)

    def check(self, value: object) -> object:
        return None if value is None else self.kind.check(value)

    @property
    def allowed(self) -> str:
        return f"{self.kind.allowed}; or `never`"

    @property
    def brief(self) -> str:
        return f"{self.kind.brief} or `never`"

    def show(self, value: object) -> str:
        return "never" if value is None else self.kind.show(value)


@dataclass(frozen=True)
class Unset(Kind):
    """``kind``, or None for 'not known'."""

    kind: Kind = field(repr=False)

    def parse(self, text: str) -> object:
        return self.kind.parse(text)

    def check(self, value: object) -> object:
        return None if value is None else self.kind.check(value)

    @property
    def allowed(self) -> str:
        return f"{self.kind.allowed}; or unset"

    @property
    def brief(self) -> str:
        return self.kind.brief

    def show(self, value: object) -> str:
        return "" if value is None else self.kind.show(value)
