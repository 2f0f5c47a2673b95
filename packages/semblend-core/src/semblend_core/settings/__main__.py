"""``python -m semblend_core.settings``: the effective settings, or with ``--markdown`` the reference page."""

from __future__ import annotations

import argparse
import logging
import sys

from semblend_core.settings.declared import Settings, declarations
from semblend_core.settings.errors import SettingError
from semblend_core.settings.page import settings_page


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m semblend_core.settings", description="Show SemBlend's settings.")
    parser.add_argument("--markdown", action="store_true", help="print the settings reference instead")
    if parser.parse_args().markdown:
        sys.stdout.write(settings_page())
        return 0
    logging.basicConfig(format="%(levelname)s: %(message)s")
    try:
        settings = Settings.from_env()
    except SettingError as error:
        print(error, file=sys.stderr)
        return 1
    changed = settings.changed()
    for declared in declarations():
        origin = "" if declared.field in changed else "  # default"
        print(f"{declared.variable}={declared.kind.show(getattr(settings, declared.field))}{origin}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
