"""The settings reference, docs/settings.md, written from the declarations."""

from __future__ import annotations

from itertools import groupby

from semblend_core.settings.declaration import Declaration
from semblend_core.settings.declared import declarations

_GROUPS = {
    "switches": ("Switches", "What SemBlend may do at all."),
    "similarity": (
        "Similarity",
        "How similar earlier requests are found. Similarity routes and searches; it never licenses a load.\n"
        "The vLLM and SGLang adapters find spans by tokens alone: of these, only `SEMBLEND_FUZZY_CHUNKS` changes what "
        "they do.",
    ),
    "planning": ("Planning", "When a finding becomes a plan, and how much of it is computed afresh."),
    "donors": ("Donors", "How many finished requests are remembered, and who goes first."),
    "store": ("Donor store", "Where donors' KV is kept, and how much of it. See [donor store](donor-store.md)."),
    "cost": (
        "Cost gate",
        "When reuse pays. Measured per model and machine; without both times per token the gate is open.",
    ),
    "audit": (
        "Audit stream",
        "The record of what happened, one JSON object per line. See [telemetry](telemetry.md).",
    ),
}
_UNIT_WORDS = {"us": "microseconds", "ms": "milliseconds", "s": "seconds"}

_HEAD = """\
<!-- Generated: python -m semblend_core.settings --markdown > docs/settings.md -->
# Settings

SemBlend reads its settings from environment variables when the engine starts. Each has a default: none is
required.

- A wrong value stops the start with an error that names every wrong variable and what it allows.
- An unknown `SEMBLEND_*` variable changes nothing and is logged with the nearest known name.
- A variable that is set but empty counts as unset.
- Switches take `1`, `true`, `yes`, `on` and `0`, `false`, `no`, `off`; words are read without regard to case.
- Sizes are plain bytes or carry a unit: `kB`, `MB`, `GB`, `TB` count in 1000s, `KiB`, `MiB`, `GiB`, `TiB` in
  1024s.

`python -m semblend_core.settings` prints what the present environment amounts to.

In code, `Settings.from_env()` reads the environment and `Settings(min_similarity=0.7)` takes the same names
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
    """The whole page as markdown."""
    groups = groupby(declarations(), key=lambda declaration: declaration.group)
    return _HEAD + "".join(_section(name, tuple(members)) for name, members in groups)


def _section(name: str, members: tuple[Declaration, ...]) -> str:
    title, intro = _GROUPS[name]
    rows = "\n".join(_row(member) for member in members)
    return f"\n## {title}\n\n{intro}\n\n| variable | default | allowed | meaning |\n|---|---|---|---|\n{rows}\n"


def _row(declaration: Declaration) -> str:
    shown = declaration.kind.show(declaration.default)
    default = f"`{shown}`" if shown else ("unset" if declaration.default is None else "empty")
    allowed = f"{declaration.kind.brief} {_UNIT_WORDS.get(declaration.unit, declaration.unit)}".rstrip()
    return f"| `{declaration.variable}` | {default} | {allowed} | {declaration.doc} |"
