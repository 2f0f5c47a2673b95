"""Settings from environment variables."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from rapidfuzz import fuzz, process

from semblend_core.settings.declaration import PREFIX, Declaration
from semblend_core.settings.errors import SettingError, WrongSetting
from semblend_core.settings.kinds import NotAllowedError

logger = logging.getLogger(__name__)

_NEAR_ENOUGH = 70.0
"""Similarity in percent below which a suggestion would only puzzle."""


def read_environment(
    environ: Mapping[str, str], declared: Collection[Declaration], also_known: Collection[str] = ()
) -> dict[str, Any]:
    """The values set in ``environ`` by field name. Raises one SettingError for all that are wrong."""
    values: dict[str, Any] = {}
    wrong: list[WrongSetting] = []
    for declaration in declared:
        text = environ.get(declaration.variable, "").strip()
        if not text:
            continue
        try:
            values[declaration.field] = declaration.kind.parse(text)
        except NotAllowedError as refusal:
            wrong.append(WrongSetting(declaration.variable, text, declaration.kind.allowed, str(refusal)))
    _warn_of_unknown(environ, {each.variable for each in declared} | set(also_known))
    if wrong:
        raise SettingError(wrong)
    return values


def _warn_of_unknown(environ: Mapping[str, str], known: set[str]) -> None:
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in known:
            nearest = _nearest(variable, known)
            hint = f"; did you mean {nearest}?" if nearest else "; see docs/settings.md for those it knows"
            # The value stays out of the log: a misspelt name may well hold a secret.
            logger.warning("%s is not a SemBlend setting and has no effect%s", variable, hint)


def _nearest(variable: str, known: set[str]) -> str | None:
    # Compared without the common prefix, which would make every name look alike.
    names = {name: name.removeprefix(PREFIX) for name in sorted(known)}
    found = process.extractOne(variable.removeprefix(PREFIX), names, scorer=fuzz.ratio, score_cutoff=_NEAR_ENOUGH)
    return None if found is None else str(found[2])
