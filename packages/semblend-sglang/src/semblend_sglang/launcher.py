"""``semblend-sglang``: SGLang's server with SemBlend switched on. All other arguments are SGLang's."""

from __future__ import annotations

import sys

from semblend_sglang.compat.versions import installed_version, why_refused
from semblend_sglang.plugin import BACKEND

FLAG = "--radix-cache-backend"


def with_backend(arguments: list[str]) -> list[str]:
    """``arguments`` with the backend chosen; SystemExit where they choose another one."""
    for index, argument in enumerate(arguments):
        name, joined, value = argument.partition("=")
        if name != FLAG:
            continue
        chosen = value if joined else next(iter(arguments[index + 1 :]), "")
        if chosen != BACKEND:
            raise SystemExit(f"semblend-sglang sets {FLAG} {BACKEND}, the arguments say {chosen!r}: leave it out")
        return arguments
    return [*arguments, FLAG, BACKEND]


def main() -> None:
    refused = why_refused(installed_version())
    if refused is not None:
        raise SystemExit(f"semblend-sglang: {refused}")
    import runpy

    sys.argv = ["sglang.launch_server", *with_backend(sys.argv[1:])]
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
