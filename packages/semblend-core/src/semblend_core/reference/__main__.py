"""``python -m semblend_core.reference [FOLDER]``: the default model as a Hugging Face folder that any engine serves."""

from __future__ import annotations

import argparse
import sys

from semblend_core.extras import MissingExtraError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m semblend_core.reference", description=__doc__)
    parser.add_argument("folder", nargs="?", help="where to write; by default the model cache")
    folder = parser.parse_args(arguments).folder
    try:
        from semblend_core.reference import default_model_folder
        from semblend_core.reference.loading import write_default_model

        written = default_model_folder() if folder is None else write_default_model(folder)
    except (MissingExtraError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
