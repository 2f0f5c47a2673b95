"""Options that several commands share."""

from __future__ import annotations

from typing import Any

import click


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
