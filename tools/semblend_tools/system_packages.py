"""Programs that a package's tests use and pip cannot bring, such as a browser.

A package names them, as Debian does, in its `[tool.semblend] test-system-packages`; where the program has another name,
it follows a colon (`etcd-server:etcd`). Where we may, they are installed before its tests run; where we may not, the
command to do so is shown, and the tests that need them are skipped.
"""

import os
import shutil
from collections.abc import Sequence

from semblend_tools.clone import Clone
from semblend_tools.processes import call
from semblend_tools.progress import say, step


def provide(clone: Clone, names: Sequence[str]) -> bool:
    """Make sure that the programs are there; False where some are not, which is said but is no failure."""
    missing = _missing(names)
    if not missing:
        return True
    if may_install():
        with step(f"installing the system packages that the tests use: {' '.join(missing)}"):
            _install(clone, missing)
        missing = _missing(names)
    if missing:
        say(f"without {', '.join(missing)} the tests that need it are skipped. To run them: {install_command(missing)}")
    return not missing


def _missing(names: Sequence[str]) -> list[str]:
    """Debian packages whose program is not here."""
    said = [name.partition(":") for name in names]
    return [package for package, _, program in said if shutil.which(program or package) is None]


def may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install_command(names: Sequence[str]) -> str:
    return f"sudo apt-get install -y --no-install-recommends {' '.join(names)}"


def _install(clone: Clone, names: Sequence[str]) -> None:
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *names]
    # A fresh machine has no package lists, an old one has stale ones; a machine without a network has neither, and its
    # failure shows below.
    if call(clone, ["apt-get", "update", "-qq"], extra_environment=quiet) == 0:
        call(clone, install, extra_environment=quiet)
