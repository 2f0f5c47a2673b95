"""``sembench headline``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from sembench.cli.live import RECIPIENT_OPTIONS, SERVER_OPTIONS, api_key, make_config, with_options
from sembench.cli.options import Words
from sembench.live.config import clean_url
from sembench.schema import SIMILARITY_TRANSFORMS, InputError

_TRANSFORMS = (
    "instruction_variant",
    "same_evidence_new_task",
    "leading_evidence_new_task",
    "rag_reorder",
    "multi_donor_composite",
    "fuzzy_edit",
    "sparse_edit",
    "multi_turn",
    *SIMILARITY_TRANSFORMS,
    "negative_control",
)
_GRID = (
    click.option(
        "--datasets",
        cls=Words,
        metavar="NAME...",
        help="Names such as EdinburghNLP/xsum or xsum. Default: all of --source, or all that the hub has.",
    ),
    click.option(
        "--source",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Local folder instead of the hub: files in the datasets' fields, or texts, as for build.",
    ),
    click.option("--hf-revision", metavar="REV", help="Commit of the datasets on the hub."),
    click.option(
        "--lengths",
        "length_bands",
        cls=Words,
        metavar="TOKENS...",
        help="Lengths of the prompts. Default: 2k 4k 8k 16k 32k.",
    ),
    click.option(
        "--documents",
        "sources_per_band",
        type=click.IntRange(min=1),
        default=2,
        show_default=True,
        help="Documents of each dataset and length; each is served once for each transform.",
    ),
    click.option(
        "--transforms", cls=Words, metavar="NAME...", help=f"As for build. Default: {', '.join(_TRANSFORMS)}."
    ),
    click.option("--tokenizer", metavar="NAME", help="Count lengths with it. Default: an estimate."),
    click.option("--manifest-seed", default=7, show_default=True, help="Of the manifest: same texts, same bytes."),
)
_JUDGE = (
    click.option("--judge-url", metavar="URL", help="An OpenAI-compatible server that judges the answers."),
    click.option("--judge-model", help="The judge's name there; better not the model that is judged."),
)


@click.command()
@click.option("--url", required=True, metavar="URL", help="The server: vLLM, SGLang or any OpenAI-compatible one.")
@click.option(
    "--engine",
    type=click.Choice(["openai", "sglang"]),
    default="openai",
    show_default=True,
    help="Its API: OpenAI's (vLLM, gateways) or SGLang's own.",
)
@click.option(
    "--output-dir",
    "-o",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for manifest.jsonl, result.json, noise-floor.json and the page, headline.md.",
)
@with_options(*_GRID, *_JUDGE, *SERVER_OPTIONS, *RECIPIENT_OPTIONS)
@click.option(
    "--noise-floor/--no-noise-floor", default=True, show_default=True, help="Also serve some prompts cold twice."
)
@click.option("--estimate-only", is_flag=True, help="Say how long the run would take, and stop.")
def headline(url: str, engine: str, output_dir: Path, **options: Any) -> None:
    """Run the standard grid against a live server, and write one page in the shape of the published tables.

    Every recipient is served cold, again from the engine's prefix cache, and after its donors: at each length, with
    each transform and in each band of similarity. The page shows hit rate and speed by length, similarity, dataset and
    transform, the break-even hit rate, quality, the judge's scores where one is set, negative controls, and all that
    was left out or failed. Only what --connector-audit confirms counts as reuse; without it the page says so.

    \b
    Examples:
      sembench headline --url http://localhost:8000 --model NAME --connector-audit audit.jsonl -o headline/
      sembench headline --url http://localhost:30000 --engine sglang --model NAME --source texts/ --lengths 2k 4k \\
        --documents 1 --connector-audit audit.jsonl -o headline/

    How long it will take is said before it starts. A run that was stopped, even by SIGKILL, goes on with --resume.
    Exit codes: 1 no clean pair or no answer at all, 2 wrong input, 3 the server or the judge was refused.
    """
    from sembench.headline.run import HeadlineRun
    from sembench.live.output import refuse_empty
    from sembench.terminal import ProgressBars

    resume, overwrite = options.pop("resume"), options.pop("overwrite")
    estimate_only, noise_floor = options.pop("estimate_only"), options.pop("noise_floor")
    judge = _open_judge(options.pop("judge_url"), options.pop("judge_model"))
    files, items, skipped = _build(options, output_dir, resume=resume, overwrite=overwrite, keep=estimate_only)
    config = make_config({**options, "paired": True, "exact": True}, engine, clean_url("--url", url))
    run = HeadlineRun(config, files, items, skipped, api_key(), judge)
    if estimate_only:
        run.estimate(noise_floor=noise_floor, resume=resume)
        return
    result = run.finished() if resume else None
    with ProgressBars() as bars:
        if result is None:
            costs = run.estimate(noise_floor=noise_floor, resume=resume)
            result = run.serve(costs, bars, resume=resume, overwrite=overwrite)
        floor = run.calibrate(result, bars) if noise_floor else None
        result = run.ask_judge(result, bars)
    run.write(result, floor)
    click.echo(f"page: {files.page}")
    refuse_empty(result, files.result)


def _build(
    options: dict[str, Any], folder: Path, *, resume: bool, overwrite: bool, keep: bool
) -> tuple[Any, list[Any], dict[str, int]]:
    """The grid's manifest: the same at every start, so that a stopped run finds its own.

    What a run left keeps the manifest that it was made with, whatever grid is asked for now; with ``keep`` also where
    the run may be overwritten.
    """
    from sembench.cli.manifests import build_published
    from sembench.headline.run import Files
    from sembench.live.output import find_leftovers
    from sembench.manifests import BuildOptions, write_manifest
    from sembench.manifests.items import format_item
    from sembench.partial import partial_path
    from sembench.terminal import ProgressBars

    transforms = tuple(dict.fromkeys(options.pop("transforms"))) or _TRANSFORMS
    names = ("datasets", "source", "hf_revision", "length_bands", "sources_per_band", "tokenizer")
    grid = {name: options.pop(name) for name in names}
    files = Files(folder)
    with ProgressBars() as bars:
        built = build_published(BuildOptions("published-v1", options.pop("manifest_seed"), transforms), grid, bars.show)
    if not built.items:
        reasons = "\n".join(f"  {reason}" for reason in built.skipped)
        raise InputError(f"no item could be built:\n{reasons}")
    find_leftovers(files.result, resume=resume and partial_path(files.result).exists(), overwrite=overwrite)
    if resume and files.manifest.exists():
        text = "".join(format_item(item) + "\n" for item in built.items)
        if files.manifest.read_text(encoding="utf-8") != text:
            raise InputError(
                f"--resume: {folder} was run on another grid; run it as it was, give --overwrite to run this one, or "
                "choose another --output-dir"
            )
    if not (keep and (files.result.exists() or partial_path(files.result).exists())):
        write_manifest(files.manifest, built.items)
    return files, built.items, dict(built.skipped)


def _open_judge(url: str | None, model: str | None) -> Any:
    from sembench.judge import JudgeClient
    from sembench.judge.client import API_KEY_VARIABLE

    if (url is None) != (model is None):
        raise click.UsageError("--judge-url and --judge-model go together")
    if url is None or model is None:
        return None
    client = JudgeClient(url, model, api_key=os.environ.get(API_KEY_VARIABLE))
    client.check()
    return client
