"""The settings reference, docs/settings.md, written from the declarations."""

from __future__ import annotations

from itertools import groupby

from semblend_core.settings.declared import Settings
from semblend_core.settings.declaring import Declaration, DeclaredSettings
from semblend_core.settings.installed import settings_beside_core

_UNIT_WORDS = {"us": "microseconds", "ms": "milliseconds", "s": "seconds"}

_HEAD = """\
<!-- Generated: python -m semblend_core.settings --markdown > docs/settings.md -->
# Settings

SemBlend reads its settings from environment variables when the engine starts. Each has a default: none is
required. Those of an adapter come last, and hold where it is installed.

- A wrong value stops the start with an error that names every wrong variable and what it allows.
- An unknown `SEMBLEND_*` variable changes nothing and is logged with the nearest known name.
- A variable that is set but empty counts as unset.
- Switches take `1`, `true`, `yes`, `on` and `0`, `false`, `no`, `off`; words are read without regard to case.
- Sizes are plain bytes or carry a unit: `kB`, `MB`, `GB`, `TB` count in 1000s, `KiB`, `MiB`, `GiB`, `TiB` in
  1024s.

`python -m semblend_core.settings` prints what the present environment amounts to.

In code, `Settings.from_env()` reads the environment and `Settings(min_reuse_ratio=0.3)` takes the same names
in lower case without the prefix; both check alike and give an immutable object. `Settings.describe()` is the
line for the start-up log.

## Example

A first day in production: look, record, load nothing.

```sh
export SEMBLEND_DISCOVERY_ONLY=1
export SEMBLEND_AUDIT_PATH=/var/log/semblend/audit-{pid}.jsonl
export SEMBLEND_AUDIT_MAX_BYTES=256MiB
```

The audit stream now says how much of the traffic could be reused. Then load, on the careful side, with 16 GiB
of host memory for the donor index:

```sh
unset SEMBLEND_DISCOVERY_ONLY
export SEMBLEND_QUALITY_TIER=strict
export SEMBLEND_MIN_REUSE_RATIO=0.3
export SEMBLEND_DONOR_INDEX_BYTES=16GiB
```
"""


def settings_page() -> str:
    """The whole page as markdown: core's settings, then those of each installed package."""
    everything: list[type[DeclaredSettings]] = [Settings, *settings_beside_core().values()]
    return _HEAD + "".join(_sections(declared) for declared in everything)


def _sections(declared: type[DeclaredSettings]) -> str:
    groups = groupby(declared.declarations(), key=lambda declaration: declaration.group)
    return "".join(_section(*declared.GROUPS[name], tuple(members)) for name, members in groups)


def _section(title: str, intro: str, members: tuple[Declaration, ...]) -> str:
    rows = "\n".join(_row(member) for member in members)
    return f"\n## {title}\n\n{intro}\n\n| variable | default | allowed | meaning |\n|---|---|---|---|\n{rows}\n"


def _row(declaration: Declaration) -> str:
    shown = declaration.kind.show(declaration.default)
    default = f"`{shown}`" if shown else ("unset" if declaration.default is None else "empty")
    allowed = f"{declaration.kind.brief} {_UNIT_WORDS.get(declaration.unit, declaration.unit)}".rstrip()
    return f"| `{declaration.variable}` | {default} | {allowed} | {declaration.doc} |"
