"""Programs of tests in forks of one process that has imported what all of them need, which takes longer than they do.

``run_program`` starts that process, and it ends with the tests. It reads a line of JSON for each program, forks, and
answers with a line that holds the exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any


class ForkingHost:
    """The process that forks, as its user sees it."""

    def __init__(self, imported: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, *imported],  # Without its folder on the path.
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._end)

    def run(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
        """The exit code of a program: ``command`` is its file and its arguments."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"command": [*command], "environment": dict(environment), "log": str(log)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that forks has ended"
        return int(answer)

    def _end(self) -> None:
        """What it used counts as used by the tests."""
        self._process.communicate()


_hosts: dict[tuple[str, ...], ForkingHost] = {}
"""By what they have imported."""


def forking_host(imported: tuple[str, ...], environment: Mapping[str, str]) -> ForkingHost:
    """What is imported sees the environment of the first who asks; each program has its own."""
    if imported not in _hosts:
        _hosts[imported] = ForkingHost(imported, environment)
    return _hosts[imported]


def serve(imported: Sequence[str]) -> None:
    """In the process that forks: until there is nobody who could ask."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # What is imported may print.
    for module in imported:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # A fork need not look at all of it again.
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            _become(asked, answers)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _become(asked: dict[str, Any], answers: IO[str]) -> None:
    """The program. It does not return."""
    code = 1
    try:
        answers.close()
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for own, number in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(own, number)
        os.environ.clear()
        os.environ.update(asked["environment"])
        program = asked["command"][0]
        named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        sys.path[:] = [*dict.fromkeys([str(Path(program).parent), *named, *sys.path])]
        sys.argv = asked["command"]
        runpy.run_path(program, run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1:])
