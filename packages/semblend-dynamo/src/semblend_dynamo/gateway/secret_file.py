"""Secrets come from files that only their owner reads: an environment shows up in too many places."""

from __future__ import annotations

import stat
from pathlib import Path

SHORTEST = 16


class ConfigurationError(ValueError):
    """A setting that cannot be worked with. The text names it and says what to do."""


def read_secret(path: str, setting: str) -> str:
    file = Path(path)
    try:
        mode = file.stat().st_mode
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{setting}={path!r} cannot be read ({type(error).__name__})") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigurationError(f"{setting}={path!r} can be read by others: run `chmod 600` on it")
    if len(secret) < SHORTEST or not secret.isascii():
        raise ConfigurationError(f"{setting}={path!r} holds no secret of at least {SHORTEST} ASCII characters")
    return secret
