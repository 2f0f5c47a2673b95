"""Questions to git about the clone."""

import subprocess

from semblend_tools.clone import Clone
from semblend_tools.processes import output_of


def git(clone: Clone, *arguments: str) -> str:
    return output_of(clone, ["git", *arguments]).strip()


def revision_exists(clone: Clone, revision: str) -> bool:
    command = ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    return subprocess.run(command, cwd=clone.root, capture_output=True).returncode == 0


def tag_exists(clone: Clone, tag: str) -> bool:
    return revision_exists(clone, f"refs/tags/{tag}")


def is_dirty(clone: Clone) -> bool:
    return bool(git(clone, "status", "--porcelain"))


def files_changed_since(clone: Clone, revision: str) -> list[str]:
    """Committed, staged, unstaged and new files: the answer is the same before a commit and after."""
    tracked = git(clone, "diff", "--name-only", "--no-renames", revision)
    untracked = git(clone, "ls-files", "--others", "--exclude-standard")
    return sorted({*tracked.splitlines(), *untracked.splitlines()})
