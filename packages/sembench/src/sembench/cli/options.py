"""Options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

FILE = click.Path(dir_okay=False, path_type=Path)


class FiniteRange(click.FloatRange):
    """A number of a range. ``nan`` is neither below nor above anything, so click's own range lets it through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return number


_SECONDS = FiniteRange(min=0, max=86_400, min_open=True)
"""Until something is given up: at most a day."""


def timeout_option(seconds: float, of_what: str) -> Callable[[Any], Any]:
    """``--timeout`` of a command: until ``of_what`` is given up."""
    text = f"Seconds until {of_what} is given up."
    return click.option("--timeout", "timeout_s", type=_SECONDS, default=seconds, show_default=True, help=text)


max_output_tokens_option = click.option(
    "--max-output-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Per answer."
)
template_option = click.option(
    "--template",
    type=click.Choice(["completion", "chat"]),
    default="completion",
    show_default=True,
    help="completion sends the prompt as it is; chat sends it as a message, and the server adds its template.",
)
tenant_option = click.option(
    "--tenant",
    default="sembench",
    show_default=True,
    help="Sent as x-tenant-id, and as the engine's cache salt: SemBlend shares within a salt. '' sends none.",
)
serve_command_option = click.option(
    "--serve-command", metavar="TEXT", help="How the server was started; kept in the result for readers."
)
model_option = click.option(
    "--model",
    default=None,
    metavar="PATH_OR_ID",
    help="A model folder, a GGUF file or a hub id.  [default: SmolLM2-135M-Instruct from the package index]",
)
"""Of the commands that run a model themselves."""


class Words(click.Option):
    """``--datasets a b c``: all words up to the next option belong to this one. It may also be repeated."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **{**attributes, "multiple": True})

    def add_to_parser(self, parser: Any, context: click.Context) -> None:
        super().add_to_parser(parser, context)
        for name in self.opts:
            option = parser._long_opt.get(name)
            if option is not None:
                _take_words(option, parser)


def _take_words(option: Any, parser: Any) -> None:
    take_one = option.process

    def process(value: str, state: Any) -> None:
        take_one(value, state)
        while state.rargs and not _is_option(state.rargs[0], parser):
            take_one(state.rargs.pop(0), state)

    option.process = process


def _is_option(word: str, parser: Any) -> bool:
    return len(word) > 1 and word[0] in parser._opt_prefixes
