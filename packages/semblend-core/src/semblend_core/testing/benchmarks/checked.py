"""What the options of benchmarks may be. What cannot work is refused by its option's name, before anything runs."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

KEPT_BY_ENGINES = 8
"""Tokens of a context that some give to nobody: they cut the answer short, or refuse the prompt."""


def positive(written: str) -> int:
    if not written.isdecimal() or not int(written):
        raise argparse.ArgumentTypeError(f"{written!r} is no whole number above 0")
    return int(written)


def not_negative(written: str) -> int:
    if not written.isdecimal():
        raise argparse.ArgumentTypeError(f"{written!r} is no whole number of at least 0")
    return int(written)


def above_zero(written: str) -> float:
    number = _number(written)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{written!r} is no number above 0")
    return number


def from_0_to_1(written: str) -> float:
    number = _number(written)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{written!r} is no number from 0 to 1")
    return number


def _number(written: str) -> float:
    """Of what is none: one that no bound admits."""
    try:
        return float(written)
    except ValueError:
        return math.nan


def model_folder(written: str) -> Path:
    if not (Path(written) / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{written} is no folder with a config.json")
    return Path(written)


def file_to_read(written: str) -> Path:
    if not Path(written).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {written}")
    return Path(written)


def text_to_read(written: str) -> Path:
    """A file, or a folder of pages."""
    path = Path(written)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"there is no file or folder {written}")
    if path.is_dir() and not any(path.rglob("*.md")):
        raise argparse.ArgumentTypeError(f"no *.md lies in the folder {written}")
    return path


def file_to_write(written: str) -> Path:
    path = Path(written)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{written} cannot be written: it must be a file, in a folder that exists")
    return path


def folder_to_write(written: str) -> Path:
    """It may be missing, but what it is to lie in may not."""
    path = Path(written)
    if not (path if path.exists() else path.parent).is_dir():
        raise argparse.ArgumentTypeError(f"{written} cannot be a folder: it must exist, or what it is to lie in")
    return path


def why_too_long(tokens: int, options: argparse.Namespace) -> str | None:
    """Of the longest prompt with its answer."""
    if tokens + KEPT_BY_ENGINES > options.context:
        kept = f"{KEPT_BY_ENGINES} are the engine's own"
        return f"--context {options.context}: prompts with their answers have up to {tokens} tokens, {kept}"
    return None


def why_too_short(option: str, tokens: int, least: int) -> str | None:
    return f"{option}: a prompt of {tokens} tokens is too short, it takes {least}" if tokens < least else None
