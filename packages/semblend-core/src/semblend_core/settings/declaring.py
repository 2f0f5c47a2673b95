"""How settings are declared: once, as the fields of a frozen dataclass, by core and by every package beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from semblend_core.settings.kinds import Kind, NotAllowedError


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


@dataclass(frozen=True)
class Declaration:
    """One setting: how its variable is called, what it may be and what it does."""

    field: str
    """Name in its class."""
    variable: str
    default: Any
    kind: Kind
    doc: str
    """One sentence."""
    unit: str
    """What a number counts, such as ``"tokens"``; empty for shares, words and sizes (always bytes)."""
    group: str
    """Section of the reference page."""
    formerly: str
    """A variable of the public package ``semblend`` that means the same, read where this one is not set; or empty."""


def setting(group: str, default: Any, kind: Kind, doc: str, *, unit: str = "", formerly: str = "") -> Any:
    """A field of a ``DeclaredSettings``."""
    metadata = {"group": group, "kind": kind, "doc": doc, "unit": unit, "formerly": formerly}
    return field(default=default, metadata=metadata)


class DeclaredSettings:
    """Base of frozen, keyword-only dataclasses whose fields are all made with ``setting``.

    Build one with ``from_env`` at start-up, or with keywords: both refuse alike.
    """

    __slots__ = ()

    PREFIX: ClassVar[str]
    """Before a field's name in capitals, this makes the name of its variable."""
    GROUPS: ClassVar[Mapping[str, tuple[str, str]]]
    """Heading and introduction of each group on the reference page."""

    def __post_init__(self) -> None:
        wrong: list[WrongSetting] = []
        for declared in self.declarations():
            value = getattr(self, declared.field)
            try:
                object.__setattr__(self, declared.field, declared.kind.check(value))
            except NotAllowedError as refusal:
                wrong.append(WrongSetting(declared.variable, value, declared.kind.allowed, str(refusal)))
        if wrong:
            raise SettingError(wrong)

    @classmethod
    def declarations(cls) -> tuple[Declaration, ...]:
        """Every setting, in the order of declaration."""
        declared: Any = cls  # mypy cannot know that every class below this one is a dataclass.
        return tuple(
            Declaration(each.name, cls.variable(each.name), each.default, **each.metadata) for each in fields(declared)
        )

    @classmethod
    def variable(cls, name: str) -> str:
        """What the environment calls the field ``name``."""
        return cls.PREFIX + name.upper()

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """What ``environ`` says; an empty variable counts as unset. All wrong values are named in one SettingError."""
        return cls(**read_environment(environ, cls.declarations()))

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults, by field name."""
        return {d.field: getattr(self, d.field) for d in self.declarations() if getattr(self, d.field) != d.default}

    def describe(self) -> str:
        """One line for the start-up log: what differs from the defaults."""
        changed = self.changed()
        shown = [f"{d.variable}={d.kind.show(changed[d.field])}" for d in self.declarations() if d.field in changed]
        return f"SemBlend settings: {' '.join(shown) or 'all at their defaults'}" + (
            " (others default)" if shown else ""
        )


def read_environment(environ: Mapping[str, str], declared: Sequence[Declaration]) -> dict[str, Any]:
    """The values set in ``environ`` by field name. Raises one SettingError for all that are wrong."""
    values: dict[str, Any] = {}
    wrong: list[WrongSetting] = []
    for declaration in declared:
        variable, text = declaration.variable, environ.get(declaration.variable, "").strip()
        if not text and declaration.formerly:
            variable, text = declaration.formerly, environ.get(declaration.formerly, "").strip()
        if not text:
            continue
        try:
            values[declaration.field] = declaration.kind.parse(text)
        except NotAllowedError as refusal:
            wrong.append(WrongSetting(variable, text, declaration.kind.allowed, str(refusal)))
    if wrong:
        raise SettingError(wrong)
    return values
