"""What the adapters' scripts have in common: their options, and where the result goes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

from semblend_core.testing.benchmarks.prompts import add_prompt_options


def options_of(about: str | None, *add_options: Callable[[argparse.ArgumentParser], None]) -> argparse.Namespace:
    """Of a script with this docstring: those of its prompts, and what else adds some."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for add in (*add_options, add_prompt_options):
        add(parser)
    return parser.parse_args()


def deliver(result: Mapping[str, Any], options: argparse.Namespace, shown: Mapping[str, Any] | None = None) -> None:
    """Write the result to ``--json``, and print it, or only ``shown`` of it."""
    if options.json:
        options.json.write_text(json.dumps(result) + "\n")
    print(json.dumps(result if shown is None else shown))


def as_text(options: argparse.Namespace) -> dict[str, str]:
    return {name: str(value) for name, value in vars(options).items()}
