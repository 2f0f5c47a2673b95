"""The command group. A command's module is imported when the command is used: ``--help`` stays fast."""

from __future__ import annotations

import importlib
from typing import Any

import click

from sembench.__about__ import __version__
from sembench.schema import InputError

COMMANDS = {
    "demo": "embedded",
    "build": "manifests",
    "checksum-manifest": "manifests",
    "audit-manifest": "manifests",
    "freeze": "manifests",
    "verify-frozen": "manifests",
    "schemas": "schemas",
    "run-offline": "offline",
    "run-live-sglang": "live",
    "run-live-gateway": "live",
    "run-embedded": "embedded",
    "run-load": "load",
    "run-privacy": "privacy",
    "calibrate-noise-floor": "live",
    "verify-endpoint": "live",
    "engine-snapshot": "engines",
    "engine-window": "engines",
    "summarize-engine-events": "engines",
    "collect-k8s-engine-events": "engines",
    "merge-results": "results",
    "assert-result-gates": "results",
    "roi": "results",
    "judge": "judge",
    "headline": "headline",
    "report": "results",
    "simulate": "simulating",
    "replay-trace": "simulating",
    "collect-trace": "traces",
    "convert-trace": "traces",
    "serve-simulator": "simulating",
}
"""Command to its module in ``sembench.cli``; there it is a click command of that name, with underscores."""


class _LazyGroup(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"sembench.cli.{COMMANDS[name]}")
        command = getattr(module, name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except InputError as error:
            click.echo(f"Error: {error}", err=True)
            context.exit(error.exit_code)
        except BrokenPipeError:
            raise  # The reader of our output has gone: click's own business.
        except OSError as error:
            click.echo(f"Error: {error.filename or 'input or output'}: {error.strerror or error}", err=True)
            context.exit(2)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="sembench")
def main() -> None:
    """Measure semantic KV reuse: what was found, what was really reused, and what it cost.

    \b
    First steps:
      sembench demo                                   the whole story on one screen
      sembench build --profile fixture -o m.jsonl     a small manifest
      sembench run-offline --manifest m.jsonl --output r.json
      sembench report r.json --output report.html

    Exit codes: 0 ok, 1 a gate or audit refused, 2 wrong usage or input, 3 an endpoint's preflight refused.
    """
