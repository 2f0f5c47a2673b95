"""The command line: ``sembench COMMAND`` or ``python -m sembench COMMAND``."""

from sembench.cli.main import main

__all__ = ["main"]
