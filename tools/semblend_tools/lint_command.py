"""`run.py lint`: style, format, types, import boundaries and the pages."""

from pathlib import Path

from semblend_tools.clone import Clone
from semblend_tools.environments import ensure, shared
from semblend_tools.import_boundaries import violations_of
from semblend_tools.packages import CORE, Package, discover
from semblend_tools.pages import faults_of
from semblend_tools.progress import complain, say, tell


def lint(clone: Clone, *, fix: bool) -> int:
    """Run every check, also after one has failed, so that one run shows all there is to mend."""
    packages = discover(clone)
    outcomes = {
        "ruff check": _ruff(clone, "check", *(["--fix"] if fix else [])),
        "ruff format": _ruff(clone, "format", *([] if fix else ["--check"])),
        "mypy --strict": _mypy(clone, packages),
        "import boundaries": _boundaries(clone, packages),
        "pages": _pages(clone),
    }
    failed = [name for name, code in outcomes.items() if code]
    if failed:
        complain(f"lint failed: {', '.join(failed)} (`lint --fix` mends style and format)")
    else:
        say("lint passed")
    return 1 if failed else 0


def _ruff(clone: Clone, *arguments: str) -> int:
    say(f"ruff {' '.join(arguments)}")
    return shared(clone, "lint").run(["-m", "ruff", *arguments, "--output-format=concise", "packages", "tools"])


def _mypy(clone: Clone, packages: list[Package]) -> int:
    """Strict types for core, for this tooling, and where `[tool.semblend] strict-types` is true."""
    installed = shared(clone, "test")
    ensure(installed)
    typed = [package for package in packages if package.name == CORE or package.settings.get("strict-types")]
    worst = 0
    for target in [*(package.source for package in typed), clone.root / "tools" / "semblend_tools"]:
        say(f"mypy --strict {clone.relative(target)}")
        # mypy lives in its own environment and looks into the shared one for the types of what is installed.
        command = ["-m", "mypy", "--strict", f"--python-executable={installed.python}", target]
        worst = max(worst, shared(clone, "lint").run([*command, f"--cache-dir={clone.tools / 'mypy'}"]))
    return worst


def _boundaries(clone: Clone, packages: list[Package]) -> int:
    say("import boundaries")
    violations = violations_of(packages)
    for violation in violations:
        tell(f"{clone.relative(violation.path)}:{violation.line}: {violation.message}")
    return 1 if violations else 0


def _pages(clone: Clone) -> int:
    say("pages")
    faults = faults_of(clone.root, _tracked_pages(clone))
    for fault in faults:
        print(f"{clone.relative(fault.path)}:{fault.line}: {fault.message}", flush=True)
    return 1 if faults else 0


def _tracked_pages(clone: Clone) -> list[Path]:
    """Those that people read. Tests' data may be what it likes."""
    folders = [clone.root / "docs", clone.root / "ci"]
    found = [page for folder in folders for page in folder.rglob("*.md")] + list(clone.root.glob("*.md"))
    for package in discover(clone):
        found += [*package.path.glob("*.md"), *(package.path / "changelog.d").glob("*.md")]
    return sorted(found)
