"""The settings of the packages installed beside core, and the variables that are nobody's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points

from semblend_core.settings.declaring import DeclaredSettings
from semblend_core.settings.earlier import EARLIER, advice_on

logger = logging.getLogger(__name__)

ENTRY_POINTS = "semblend.settings"
"""The group under which a package names its ``DeclaredSettings``."""

_PREFIX = "SEMBLEND_"
_READ_ELSEWHERE = {"SEMBLEND_CACHE_DIR", "SEMBLEND_MODEL_CACHE", "SEMBLEND_REQUIRE_ENGINES", "SEMBLEND_TRTLLM_SRC"}
"""Variables of the tools, the reference engine and the tests: no settings, and no misspelt ones either."""
_NEAR_ENOUGH = 0.7
"""Similarity below which a suggestion would only puzzle."""


def settings_beside_core() -> dict[str, type[DeclaredSettings]]:
    """What installed packages declare, by the name of their entry point. One that cannot be loaded is left out."""
    found: dict[str, type[DeclaredSettings]] = {}
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # Another package's fault must not stop an engine.
            logger.warning("the settings of %s cannot be read: %s: %s", entry.value, type(error).__name__, error)
    return found


def warn_of_unknown(environ: Mapping[str, str], core: type[DeclaredSettings]) -> None:
    """Log every ``SEMBLEND_*`` variable that nobody declares, with the nearest name that somebody does.

    Some that the public package read have another prefix.
    """
    ours = sorted(variable for variable in environ if variable.startswith(_PREFIX) or variable in EARLIER)
    declared = {each.variable for each in core.declarations()}
    if declared.issuperset(ours):
        return
    everything = [core, *settings_beside_core().values()]
    declared = {each.variable for settings in everything for each in settings.declarations()}
    renamed = {each.formerly: each.variable for settings in everything for each in settings.declarations()}
    for variable in ours:
        if variable in declared | _READ_ELSEWHERE:
            continue
        # The value stays out of the log: a misspelt name may well hold a secret.
        if variable in renamed:
            logger.warning("%s is called %s now, and read as that where that is not set", variable, renamed[variable])
        elif advice := advice_on(variable):
            logger.warning("%s has no effect, leave it out: %s (docs/migration.md)", variable, advice)
        else:
            nearest = _nearest(variable, declared)
            hint = f"; did you mean {nearest}?" if nearest else "; see docs/settings.md for those it knows"
            logger.warning("%s is not a SemBlend setting and has no effect%s", variable, hint)


def _nearest(variable: str, known: set[str]) -> str | None:
    # Compared without the common prefix, which would make every name look alike.
    names = sorted(name.removeprefix(_PREFIX) for name in known)
    found = get_close_matches(variable.removeprefix(_PREFIX), names, n=1, cutoff=_NEAR_ENOUGH)
    return _PREFIX + found[0] if found else None
