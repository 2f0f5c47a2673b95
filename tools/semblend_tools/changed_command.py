"""`run.py changed`: the packages that a change can affect, which is what CI has to test."""

import json
from collections.abc import Sequence

from semblend_tools.clone import Clone
from semblend_tools.errors import ToolError
from semblend_tools.git import files_changed_since, git, revision_exists
from semblend_tools.packages import Package, discover, with_dependents

# Files outside packages/ that concern no package, unless its tests name them (a page made from its code).
# Anything else out there is tooling and concerns every package.
DOCUMENTS = ("docs/", "README.md", "LICENSE")


def changed(clone: Clone, since: str | None, *, as_json: bool) -> int:
    if since and not revision_exists(clone, since):
        raise ToolError(f"git knows no revision {since!r}; give one that exists with --since", 2)
    base = since or _default_base(clone)
    packages = discover(clone)
    # Without history (a first commit, a shallow clone) nothing can be ruled out.
    affected = affected_packages(packages, files_changed_since(clone, base)) if base else packages
    names = [package.name for package in affected]
    if as_json:
        print(json.dumps({"since": base, "packages": names}))
    else:
        print("\n".join(names) or f"no package is affected by what changed since {base}")
    return 0


def affected_packages(packages: Sequence[Package], files: Sequence[str]) -> list[Package]:
    outside = [file for file in files if not file.startswith("packages/")]
    if any(not file.startswith(DOCUMENTS) for file in outside):
        return list(packages)
    folders = {file.split("/")[1] for file in files if file.startswith("packages/")}
    touched = [package for package in packages if package.path.name in folders]
    documented = [package for package in packages if _tests_name_one_of(package, outside)]
    return with_dependents(packages, [*touched, *documented])


def _tests_name_one_of(package: Package, documents: Sequence[str]) -> bool:
    names = [document.rpartition("/")[2] for document in documents]
    texts = (path.read_text(encoding="utf-8") for path in package.tests.rglob("*.py") if names)
    return any(name in text for text in texts for name in names)


def _default_base(clone: Clone) -> str | None:
    if revision_exists(clone, "origin/main"):
        base = git(clone, "merge-base", "origin/main", "HEAD")
        # On main itself the merge base is HEAD: the last commit is the change then.
        if base != git(clone, "rev-parse", "HEAD"):
            return base
    return "HEAD~1" if revision_exists(clone, "HEAD~1") else None
