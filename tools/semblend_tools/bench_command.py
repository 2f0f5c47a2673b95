"""`run.py bench`: run a benchmark of some package and hold it to its one rule, a last line of JSON."""

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from semblend_tools.clone import Clone
from semblend_tools.environments import Environment, engine_of, ensure, shared
from semblend_tools.errors import ToolError
from semblend_tools.packages import Package, discover
from semblend_tools.progress import say


def bench(clone: Clone, name: str | None, quick: bool, arguments: Sequence[str]) -> int:
    packages = discover(clone)
    available = _benchmarks(packages)
    if name is None:
        print(_listing(available))
        return 0
    script = _find(available, name)
    environment = _environment(clone, next(package for package in packages if package.path in script.parents))
    ensure(environment)
    say(f"benchmark {clone.relative(script)}")
    command = [str(environment.python), str(script), *(["--quick"] if quick else []), *arguments]
    code, last = _stream(command, clone.child_environment() | environment.variables(), clone.root)
    if code:
        raise ToolError(f"the benchmark failed with exit code {code}", code)
    _require_json_object(clone.relative(script), last)
    return 0


def _environment(clone: Clone, package: Package) -> Environment:
    """What a package's benchmarks need is its extra `bench`. Where an engine has none, they need the engine."""
    names_extra = "bench" in package.pyproject["project"].get("optional-dependencies", {})
    wants_engine = package.has_engine_environment and not names_extra
    return engine_of(clone, package) if wants_engine else shared(clone, "bench")


def _benchmarks(packages: Sequence[Package]) -> dict[str, Path]:
    """`package/name` -> file. A leading underscore marks a helper that benchmarks share."""
    return {
        f"{package.name}/{path.stem}": path
        for package in packages
        for path in sorted((package.path / "benchmarks").glob("*.py"))
        if not path.name.startswith("_")
    }


def _find(available: dict[str, Path], name: str) -> Path:
    matches = {full: path for full, path in available.items() if name in (full, full.partition("/")[2])}
    if not matches:
        raise ToolError(f"no such benchmark: {name}\n{_listing(available)}", 2)
    if len(matches) > 1:
        raise ToolError(f"several packages have a benchmark {name}: say {' or '.join(matches)}", 2)
    return next(iter(matches.values()))


def _listing(available: dict[str, Path]) -> str:
    if not available:
        return "There are no benchmarks yet: a benchmark is a file packages/*/benchmarks/NAME.py."
    width = max(len(full) for full in available)
    lines = [f"  {full.ljust(width)}  {_first_line_of_docstring(path)}" for full, path in available.items()]
    return "\n".join(["Benchmarks:", *lines])


def _first_line_of_docstring(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "(no docstring)"
    return docstring.splitlines()[0]


def _stream(command: Sequence[str], environment: dict[str, str], cwd: Path) -> tuple[int, str]:
    """Pass the output on as it comes; return the exit code and the last line that is not blank."""
    last = ""
    with subprocess.Popen(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            last = line.strip() or last
    return process.returncode, last


def _require_json_object(script: str, line: str) -> None:
    try:
        parsed = json.loads(line)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ToolError(f"the last line that {script} prints must be one JSON object, and it is: {line!r}")
