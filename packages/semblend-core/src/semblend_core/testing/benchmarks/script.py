"""What the adapters' scripts have in common: their options, and where the result goes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

from semblend_core.testing.benchmarks.prompts import add_prompt_options


def options_of(
    about: str | None,
    *add_options: Callable[[argparse.ArgumentParser], None],
    why_not: Callable[[argparse.Namespace], str | None] = lambda options: None,
) -> argparse.Namespace:
    """Of a script with this docstring: those of its prompts, and what else adds some.

    ``why_not``: why a run with all of them could not work, in words that name the option. It ends before it begins.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for add in (*add_options, add_prompt_options):
        add(parser)
    options = parser.parse_args()
    reason = why_not(options)
    if reason is not None:
        parser.error(reason)
    return options


def deliver(result: Mapping[str, Any], options: argparse.Namespace, shown: Mapping[str, Any] | None = None) -> None:
    """Write the result to ``--json``, and print it, or only ``shown`` of it."""
    if options.json:
        options.json.write_text(json.dumps(result) + "\n")
    print(json.dumps(result if shown is None else shown))


def as_text(options: argparse.Namespace) -> dict[str, str]:
    return {name: str(value) for name, value in vars(options).items()}
