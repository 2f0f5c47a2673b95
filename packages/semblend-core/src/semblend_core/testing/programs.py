"""Programs of tests whose engines have processes of their own, and which write what they found as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from semblend_core.testing.forked_programs import forking_host

LONGEST_S = 1200
"""No limit of speed: what has not ended by then hangs."""


def run_program(
    program: Path, folder: Path, *arguments: str, imported: Sequence[str] = (), **variables: str
) -> dict[str, Any]:
    """What ``program`` found with these arguments and environment variables. Its log is left in ``folder``.

    ``imported``: modules. Programs that name the same ones are forked from one process which has imported them.
    """
    found, log = folder / f"{program.stem}.json", folder / f"{program.stem}.log"
    command, environment = [str(program), str(found), *arguments], os.environ | variables
    if imported:
        code = forking_host(tuple(imported), environment).run(command, environment, log)
    else:
        with log.open("wb") as output:
            code = subprocess.run(
                [sys.executable, *command], env=environment, stdout=output, stderr=output, timeout=LONGEST_S
            ).returncode
    assert code == 0, log.read_text()[-6000:]
    return dict(json.loads(found.read_text()))


def write_findings(main: Callable[..., dict[str, Any]]) -> None:
    """In the program: write what ``main`` finds with its arguments, and end at once."""
    found = main(*sys.argv[2:])
    Path(sys.argv[1]).write_text(json.dumps(found))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # The engine's own ending is not what is tested.
