"""Says at the top of every test run which real engines take part, and can make a missing one fatal.

An adapter names its engine in the entry-point group ``semblend.engines``: the entry's name is the engine's, its value a
callable that returns the installed engine's version, or None when the engine is absent. ``SEMBLEND_REQUIRE_ENGINES``
(comma-separated names, or ``name==version``) fails the run when one of them is missing or is another version, so a
skipped engine cannot pass for a tested one.

It also sets how hypothesis draws its cases: no limit of time, and the same ones each time unless exhaustive tests run.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from importlib.util import find_spec

import pytest

ENTRY_POINT_GROUP = "semblend.engines"
REQUIRED_VARIABLE = "SEMBLEND_REQUIRE_ENGINES"


def engine_versions() -> dict[str, str | None]:
    """Installed version by engine name; None for an engine whose adapter is here and which is not."""
    return {entry.name: entry.load()() for entry in entry_points(group=ENTRY_POINT_GROUP)}


def pytest_report_header(config: pytest.Config) -> str:
    versions = engine_versions()
    real = [f"{name} {version}" for name, version in sorted(versions.items()) if version]
    absent = [name for name, version in sorted(versions.items()) if not version]
    line = "real engines in this run: " + (", ".join(real) or "none")
    return line + (f"; not installed here: {', '.join(absent)}" if absent else "")


def pytest_configure(config: pytest.Config) -> None:
    if find_spec("hypothesis"):
        _draw_cases(anew=config.getoption("markexpr") != "not exhaustive")
    required = [name.strip() for name in os.environ.get(REQUIRED_VARIABLE, "").split(",") if name.strip()]
    versions = engine_versions() if required else {}
    missing = [wanted for wanted in required if not _is_there(wanted, versions)]
    if missing:
        raise pytest.UsageError(
            f"{REQUIRED_VARIABLE} asks for {', '.join(missing)}, which this environment does not have; "
            f"install the adapter with its engine extra, or drop the name from {REQUIRED_VARIABLE}"
        )


def _is_there(wanted: str, versions: dict[str, str | None]) -> bool:
    name, _, version = wanted.partition("==")
    found = versions.get(name)
    return found is not None and version in ("", found)


def _draw_cases(*, anew: bool) -> None:
    """A slow machine is no defect, and the plain run must not fail by luck: new cases are for who looks for defects."""
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "semblend", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not anew
    )
    settings.load_profile("semblend")
