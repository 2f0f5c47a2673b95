"""Build a manifest, replay it on the embedded engine, show one screen and write the report."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from sembench.demo.items import demo_items
from sembench.demo.screen import show
from sembench.embedded.config import EmbeddedConfig
from sembench.embedded.partial import partial_path
from sembench.embedded.runner import run_embedded
from sembench.manifests import write_manifest
from sembench.schema import InputError, Result


def run_demo(output_dir: Path, seed: int, model: str | None = None) -> Result:
    """Writes manifest.jsonl, result.json and report.html into ``output_dir``, and prints the screen."""
    items = demo_items(seed)
    manifest, output, report = (output_dir / name for name in ("manifest.jsonl", "result.json", "report.html"))
    try:
        write_manifest(manifest, items)
        partial_path(output).unlink(missing_ok=True)  # A demo always starts anew.
    except OSError as error:
        raise InputError(f"--output-dir {output_dir}: {error.strerror or error}") from None
    result = run_embedded(manifest, output, demo_config(model), seed=seed, console=Console(stderr=True))
    _write_report(result, report)
    show(result, items, report.resolve())
    return result


def demo_config(model: str | None) -> EmbeddedConfig:
    """Short answers, two rounds, no probes, rounding told by the exact arm: two cores must do it in a few minutes."""
    return EmbeddedConfig(
        model=model, continuation_tokens=48, max_output_tokens=24, repeats=2, probe=False, noise_floor=False
    )


def _write_report(result: Result, path: Path) -> None:
    from sembench.report import write_report

    write_report([result], path)
