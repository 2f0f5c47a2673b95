"""``python -m semblend_core.settings``: the effective settings, or with ``--markdown`` the reference page."""

from __future__ import annotations

import argparse
import logging
import sys

from semblend_core.settings.declared import Settings
from semblend_core.settings.declaring import SettingError
from semblend_core.settings.installed import settings_beside_core
from semblend_core.settings.page import settings_page


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m semblend_core.settings", description="Show SemBlend's settings.")
    parser.add_argument("--markdown", action="store_true", help="print the settings reference instead")
    if parser.parse_args().markdown:
        sys.stdout.write(settings_page())
        return 0
    logging.basicConfig(format="%(levelname)s: %(message)s")
    try:
        everything = [Settings.from_env(), *(declared.from_env() for declared in settings_beside_core().values())]
    except SettingError as error:
        print(error, file=sys.stderr)
        return 1
    for settings in everything:
        changed = settings.changed()
        for declared in settings.declarations():
            origin = "" if declared.field in changed else "  # default"
            print(f"{declared.variable}={declared.kind.show(getattr(settings, declared.field))}{origin}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
