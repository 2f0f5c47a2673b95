"""``python -m semblend_core.control``: show what running engines hold of a tenant, or purge it."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from semblend_core.contract import tenant_of_salt
from semblend_core.control.client import ANSWER_TIMEOUT_S, ControlError, asked_of_engines

EXPLANATION = """\
A tenant is whoever sends one salt: `cache_salt` in vLLM; `cache_salt`, or without it `extra_key`, in SGLang.
The salt is read from standard input or from a file, never from the command line, which other users can see.

  printf %s "$SALT" | python -m semblend_core.control purge
  python -m semblend_core.control show --salt-file /run/secrets/salt
  python -m semblend_core.control show --unsalted

The answer is JSON. A purge ends with a second look: `verified` says that nothing is left.
The exit code is 0; 1 where an engine could not be reached or failed; 2 where something is left after a purge.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m semblend_core.control",
        description="Show what running engines hold of a tenant, or purge it.",
        epilog=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "command",
        choices=("show", "purge", "id"),
        help="show: donors, bytes and their age; purge: drop them all; id: the tenant's 16 digits, asking no engine",
    )
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--salt-file", type=Path, metavar="FILE", help="file that holds the salt, and nothing else")
    whose.add_argument("--unsalted", action="store_true", help="requests that were sent without a salt")
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="FOLDER",
        default=os.environ.get("SEMBLEND_CONTROL_DIR") or None,
        help="the engines' control folder; default: SEMBLEND_CONTROL_DIR",
    )
    parser.add_argument(
        "--timeout", type=float, default=ANSWER_TIMEOUT_S, metavar="S", help="seconds to wait for each engine"
    )
    asked = parser.parse_args(arguments)
    try:
        salt = None if asked.unsalted else _salt(asked.salt_file)
        tenant = tenant_of_salt(salt)
        if asked.command == "id":
            print(tenant)
            return 0
        if asked.dir is None:
            raise ControlError("name the engines' control folder with --dir, or set SEMBLEND_CONTROL_DIR")
        told = asked_of_engines(asked.dir, asked.command, tenant, asked.timeout)
    except (ControlError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(told, indent=2))
    return 0 if told.get("verified", True) else 2


def _salt(file: Path | None) -> str:
    if file is not None:
        salt = file.read_text(encoding="utf-8")
    else:
        salt = getpass.getpass("salt: ") if sys.stdin.isatty() else sys.stdin.read()
    salt = salt.removesuffix("\n")
    if not salt:
        raise ControlError("the salt is empty; for requests without a salt say --unsalted")
    return salt


if __name__ == "__main__":
    sys.exit(main())
