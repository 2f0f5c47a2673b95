"""Everything a contributor runs, from one command: `python3 tools/run.py --help`.

Needs only Python 3.11 or newer. This file is written so that an older Python can still read it far enough
to say what is missing.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  (this is where the requirement is enforced)
    sys.stderr.write(
        "tools/run.py needs Python 3.11 or newer, and this is Python " + sys.version.split()[0] + ".\n"
        "Install a newer one and start it by name, for example: python3.11 tools/run.py --help\n"
    )
    sys.exit(2)

from semblend_tools.command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
