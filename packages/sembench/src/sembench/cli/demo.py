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
    help="Folder for manifest.jsonl, result.json and report.html; made if it is not there.",
)
@click.option(
    "--model",
    default=None,
    metavar="PATH_OR_ID",
    help="A model folder, a GGUF file or a hub id.  [default: SmolLM2-135M-Instruct from the package index]",
)
@click.option("--seed", default=7, show_default=True, help="Of the generated text: same seed, same manifest.")
def demo(output_dir: Path, model: str | None, seed: int) -> None:
    """The whole story on one screen: prompts served cold and with reuse, on a real model.

    \b
    pip install "sembench[embedded]" "torch==2.13.0"     (the pin: a small build for the CPU)
    sembench demo

    Writes documents and serves prompts about them. Then it serves changed prompts: the same one again, another
    instruction, reordered passages, passages of several requests, edited sentences, and an unrelated one as a control.
    Each is computed cold, from its own KV, and with KV that earlier prompts left. Prints times to the first token, the
    tokens that were reused, how far the model strays from its cold self, and some answers; writes a report. About three
    minutes on two cores; the first time the model is fetched (93 MB).
    """
    from sembench.embedded.extra import require_embedded_extra

    require_embedded_extra()
    from sembench.demo.run import run_demo

    run_demo(output_dir, seed, model)
