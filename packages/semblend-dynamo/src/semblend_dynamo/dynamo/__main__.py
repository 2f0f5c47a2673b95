"""``semblend-dynamo-router``, or ``python -m semblend_dynamo.dynamo``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from semblend_core import SettingError, require_extra
from semblend_dynamo.dynamo.arguments import parse
from semblend_dynamo.dynamo.versions import installed_version, why_unsure

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    require_extra("dynamo.runtime", distribution="semblend-dynamo", extra="dynamo")
    uvloop = require_extra("uvloop", distribution="semblend-dynamo", extra="dynamo")
    from dynamo.runtime import dynamo_worker
    from dynamo.runtime.logging import configure_dynamo_logging

    from semblend_dynamo.dynamo.component import run

    configure_dynamo_logging()
    unsure = why_unsure(installed_version())
    if unsure is not None:
        logger.warning(unsure)
    try:
        uvloop.run(dynamo_worker()(run)(given))
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
