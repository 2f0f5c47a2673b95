"""`run.py ci-workflow`: the GitHub workflow, written from the packages that are there."""

from collections.abc import Iterable, Sequence

from semblend_tools.clone import Clone
from semblend_tools.engines import OWN, environment_owner, releases_of
from semblend_tools.errors import ToolError
from semblend_tools.minimum_core import core_floor
from semblend_tools.packages import Package, discover
from semblend_tools.progress import say

PATH = "ci/github-workflow.yml"

# What every package is tested with; the engines' tests run with the first.
PYTHONS = ("3.11", "3.12", "3.13")

_TEMPLATE = """\
# Written by `python3 tools/run.py ci-workflow`; a test keeps it current. Do not edit by hand.
# GitHub reads workflows from .github/workflows only: see docs/contributing.md for how this one gets there.
name: ci

on:
  push:
    branches: [main]
  pull_request:
  schedule:
    - cron: "17 2 * * *" # every night: `test --all`

permissions:
  contents: read

jobs:
  changed:
    runs-on: ubuntu-latest
    outputs:
      packages: ${{ steps.changed.outputs.packages }}
    steps:
      - uses: actions/checkout@v4
        with: { fetch-depth: 0 } # all history: `changed` compares with main
      - uses: actions/setup-python@v5
        with: { python-version: "3.11" }
      - id: changed
        run: echo "packages=$(python3 tools/run.py changed --json)" >> "$GITHUB_OUTPUT"

  lint:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: { python-version: "3.11" }
      - run: python3 tools/run.py lint
      - run: python3 tools/run.py test tools

  test:
    needs: changed
    if: ${{ github.event_name != 'schedule' }}
    runs-on: ubuntu-latest
    strategy:
      fail-fast: false
      matrix:
        package:
@PACKAGES@
        python: [@PYTHONS@]
    steps:
      - if: ${{ @AFFECTED@ }}
        uses: actions/checkout@v4
      - if: ${{ @AFFECTED@ }}
        uses: actions/setup-python@v5
        with: { python-version: "${{ matrix.python }}" }
      - if: ${{ @AFFECTED@ }}
        run: python3 tools/run.py test ${{ matrix.package }} --no-engine
"""

_ENGINES = """\

  engine:
    needs: changed
    if: ${{ github.event_name != 'schedule' }}
    runs-on: ubuntu-latest
    strategy:
      fail-fast: false
      matrix:
        include:
@ENGINES@
    steps:
      - if: ${{ @AFFECTED@ }}
        uses: actions/checkout@v4
      - if: ${{ @AFFECTED@ }}
        uses: actions/setup-python@v5
        with: { python-version: "3.11" }
      - if: ${{ @AFFECTED@ }}
        run: python3 tools/run.py test ${{ matrix.package }} --engine-release ${{ matrix.release }}
"""

_NIGHTLY = """\

  nightly:
    if: ${{ github.event_name == 'schedule' }}
    runs-on: ubuntu-latest
    strategy:
      fail-fast: false
      matrix:
        package:
@PACKAGES@
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: { python-version: "3.11" }
      - run: python3 tools/run.py test ${{ matrix.package }} --all
"""

_MINIMUM_CORE = """\

  minimum-core:
    needs: changed
    if: ${{ github.event_name != 'schedule' }}
    runs-on: ubuntu-latest
    strategy:
      fail-fast: false
      matrix:
        package:
@DEPENDENTS@
    steps:
      - if: ${{ @AFFECTED@ }}
        uses: actions/checkout@v4
        with: { fetch-depth: 0 } # all history: the oldest core comes from its tag
      - if: ${{ @AFFECTED@ }}
        uses: actions/setup-python@v5
        with: { python-version: "3.11" }
      - if: ${{ @AFFECTED@ }}
        run: python3 tools/run.py minimum-core ${{ matrix.package }}
"""

_WHEELS = """\

  wheels:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: { python-version: "3.11" }
      - run: python3 tools/run.py build
      - uses: actions/upload-artifact@v4
        with:
          name: dist
          path: dist/
"""

_AFFECTED = "contains(fromJSON(needs.changed.outputs.packages).packages, matrix.package)"


def ci_workflow(clone: Clone, *, check: bool) -> int:
    path = clone.root / PATH
    wanted = render(discover(clone))
    if path.is_file() and path.read_text() == wanted:
        say(f"{PATH} is up to date")
        return 0
    if check:
        raise ToolError(f"{PATH} is out of date: run `python3 tools/run.py ci-workflow`")
    path.write_text(wanted)
    say(f"wrote {PATH}")
    return 0


def render(packages: Sequence[Package]) -> str:
    dependents = [package for package in packages if core_floor(package) is not None]
    engines = _engine_rows(packages)
    # A matrix must not be empty, so a job is left out of a workspace that has nothing for it.
    text = _TEMPLATE + (_ENGINES if engines else "") + _NIGHTLY + (_MINIMUM_CORE if dependents else "") + _WHEELS
    return (
        text.replace("@PACKAGES@", _as_list(package.name for package in packages))
        .replace("@PYTHONS@", ", ".join(f'"{version}"' for version in PYTHONS))
        .replace("@ENGINES@", _as_list(engines))
        .replace("@DEPENDENTS@", _as_list(package.name for package in dependents))
        .replace("@AFFECTED@", _AFFECTED)
    )


def _engine_rows(packages: Sequence[Package]) -> list[str]:
    """One for every package and every release of an engine that it supports."""
    rows = []
    for package in packages:
        owner = environment_owner(package, packages)
        if owner is None:
            continue
        versions = [release.version for release in releases_of(owner)] or [OWN]
        for version in versions if owner is package else versions[:1]:
            rows.append(f'{{ package: {package.name}, release: "{version}" }}')
    return rows


def _as_list(entries: Iterable[str]) -> str:
    return "\n".join(f"          - {entry}" for entry in entries)
