"""``sembench run-embedded`` and ``sembench demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from sembench.cli.options import FiniteRange, model_option
from sembench.exit_codes import REFUSED_BY_FIGURES
from sembench.schema import InputError


@click.command(name="run-embedded")
@click.option(
    "--manifest", "-m", required=True, type=click.Path(path_type=Path), help="What to replay (see `sembench build`)."
)
@click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Result file. Finished items are kept in OUTPUT.partial.jsonl until it is written.",
)
@model_option
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Of weights and KV.",
)
@click.option(
    "--template",
    type=click.Choice(["chat", "none"]),
    default="chat",
    show_default=True,
    help="chat: prompts are user messages in the model's template. none: they are the whole text.",
)
@click.option(
    "--tier",
    type=click.Choice(["fast", "balanced", "strict"]),
    default="balanced",
    show_default=True,
    help="Quality tier: which policy computes how much of a plan afresh.",
)
@click.option("--policy", default=None, metavar="NAME", help="A recompute policy instead of a tier; see below.")
@click.option(
    "--budget",
    type=FiniteRange(0, 1),
    default=None,
    help="Share of the reused tokens that may be computed afresh.  [default: the tier's; 0.15 with --policy]",
)
@click.option(
    "--block-size", type=click.IntRange(1), default=16, show_default=True, help="Tokens per prefix-cache block."
)
@click.option("--max-items", type=click.IntRange(1), default=None, help="Only the manifest's first items.")
@click.option(
    "--continuation-tokens",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Length of the cold greedy text over which KL, PPL ratio and top-1 are taken.",
)
@click.option("--max-output-tokens", type=click.IntRange(1), default=48, show_default=True, help="Longest answer.")
@click.option(
    "--quality-threshold",
    type=FiniteRange(0, 1),
    default=0.60,
    show_default=True,
    help="An answer passes where the best of F1, ROUGE-L and token recall reaches this.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Rounds of cold, warm and exact per item. TTFT is the median; every one is in the result. Items "
    "whose rounds have taken 12 s get no further one.",
)
@click.option("--exact/--no-exact", default=True, show_default=True, help="The same prompt from its own KV.")
@click.option(
    "--probe/--no-probe",
    default=True,
    show_default=True,
    help="Every prompt that was served with reuse once more, with reuse off: must equal cold.",
)
@click.option(
    "--noise-floor/--no-noise-floor", default=True, show_default=True, help="Cold against cold in two chunks."
)
@click.option("--resume", is_flag=True, help="Go on from OUTPUT.partial.jsonl where a run was stopped.")
def run_embedded(manifest: Path, output: Path, resume: bool, **options: Any) -> None:
    """Replay a manifest on the embedded engine: a real model, real relocated KV, KL and PPL against cold.

    \b
    pip install "sembench[embedded]" "torch==2.13.0"     (the pin: a small build for the CPU)
    sembench build --profile fixture --output m.jsonl
    sembench run-embedded --manifest m.jsonl --output r.json --tier balanced

    Each item's donors are prefilled, their KV is kept and offered to SemBlend's provider. The recipient is then served
    cold (computed whole, in a new workspace), warm (exact prefix as the engine's own cache has it, lookup, relocation,
    recompute: all of it in TTFT), exact (from its own KV), and once more with reuse off. Cold and warm take turns.

    Only tokens whose relocated KV was used count as confirmed; those that the policy computed afresh count as
    computed. Declines are recorded with their reason.

    \b
    Policies: rotate_only, seam_head, seam_and_tail, shared_sink, query_attention,
      seam_head+query_attention, seam_head+mean_shift, seam_head+query_attention+mean_shift,
      kv_deviation, random, full_recompute
    """
    if options["policy"] and click.get_current_context().get_parameter_source("tier") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--policy replaces the tier's choice: give --tier or --policy, not both")

    from sembench.embedded.config import require_embedded_extra

    require_embedded_extra()
    from sembench.embedded.config import EmbeddedConfig
    from sembench.embedded.runner import run_embedded as run
    from sembench.embedded.table import print_summary
    from sembench.partial import partial_path

    try:
        result = run(manifest, output, EmbeddedConfig(**options), resume=resume)
    except KeyboardInterrupt:
        if partial_path(output).exists():
            click.echo(f"\nFinished items are in {partial_path(output)}: go on with --resume", err=True)
        raise
    print_summary(result, output)
    if result.aggregate.requests_ok == 0:
        raise InputError(f"{output}: no request succeeded; each record says why", REFUSED_BY_FIGURES)


@click.command()
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/demo"),
    show_default=True,
    help="Folder for manifest.jsonl, result.json and report.html; made if it is not there.",
)
@model_option
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
    from sembench.embedded.config import require_embedded_extra

    require_embedded_extra()
    from sembench.embedded.demo import run_demo

    run_demo(output_dir, seed, model)
