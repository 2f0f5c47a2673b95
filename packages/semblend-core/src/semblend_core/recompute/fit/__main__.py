"""Fit a correction of relocated KV for one model, from text and the frozen weights.

Many requests are made of the text, each is computed cold and with reuse, and small linear maps learn what the rows that
are computed say of the tokens that are not. The file is written only if requests that the fit has not seen come out
nearer to cold than without it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from semblend_core.extras import require_extra


def main(arguments: list[str] | None = None) -> int:
    options = parse_options(arguments)
    for needed in ("torch", "transformers", "safetensors"):
        require_extra(needed, distribution="semblend-core", extra="reference")
    from semblend_core.recompute.fit.fitting import Fitting

    fitted = Fitting.run(options, say)
    print(json.dumps(fitted.report))
    if fitted.file is None:
        say("nothing is written: the fit does not come nearer to cold than the correction that needs none")
        return 1
    say(f"written to {fitted.file}")
    return 0


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m semblend_core.recompute.fit", description=__doc__)
    parser.add_argument("model", nargs="?", help="folder with weights (default: SmolLM2 from the package index)")
    parser.add_argument("--text", type=Path, nargs="+", default=[], help="files and folders (default: Python's manual)")
    parser.add_argument("--out", type=Path, help="file to write (default: where engines look for it)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=240, help="to learn from (default: %(default)s)")
    parser.add_argument("--judged", type=int, default=24, help="further ones to judge by (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=2048, help="most tokens of a prompt (default: %(default)s)")
    parser.add_argument("--continuation", type=int, default=32, help="forced tokens to judge by (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    for name in ("requests", "judged", "tokens", "continuation"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return options


def say(message: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
