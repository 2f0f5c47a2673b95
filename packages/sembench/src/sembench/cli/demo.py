"""``sembench demo``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/demo"),
    show_default=True,
    help="Folder for report.html and demo.json; made if it is not there.",
)
@click.option("--seed", default=7, show_default=True, help="Seed of the generated text: same seed, same bytes.")
def demo(output_dir: Path, seed: int) -> None:
    """Show what is reused when prompts change, on an engine model that runs anywhere.

    Serves support tickets as donors, then the same tickets behind a new instruction, reordered, recombined from several
    requests and edited, and an unrelated prompt as a control. Each is served cold and with SemBlend, through the real
    provider and the real contract. The engine model moves tokens, not tensors: it shows which tokens are computed and
    which are reused, and makes no claim about milliseconds or answer quality.
    """
    from sembench.demo.run import run_demo

    try:
        run_demo(output_dir, seed)
    except OSError as error:
        raise click.ClickException(f"--output-dir {output_dir}: {error.strerror or error}") from error
