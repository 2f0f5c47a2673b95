"""``sembench judge``."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from sembench.cli.options import FILE, timeout_option
from sembench.exit_codes import REFUSED_BY_FIGURES, REFUSED_OUTSIDE
from sembench.identity import load_manifest, sha256_of
from sembench.schema import InputError, Result, read_json, write_atomically


@click.command()
@click.option("--result", "result_path", type=FILE, required=True, help="The result whose answers are judged.")
@click.option("--manifest", "-m", type=FILE, required=True, help="The manifest it was run on: it holds the evidence.")
@click.option("--judge-url", required=True, help="An OpenAI-compatible server, such as http://localhost:8000.")
@click.option("--judge-model", required=True, help="The judge's name there; better not the model that was judged.")
@click.option("--output", "-o", type=FILE, required=True, help="Where the result with the opinions goes.")
@click.option("--max-items", type=click.IntRange(min=1), help="Judge only the first items. Default: all.")
@click.option("--concurrency", type=click.IntRange(1, 64), default=4, show_default=True, help="Questions at a time.")
@timeout_option(120.0, "a question")
@click.option("--max-tokens", default=512, show_default=True, help="Longest reply; raise it for a judge that reasons.")
@click.option(
    "--max-prompt-chars",
    type=click.IntRange(min=1),
    help="Leave items with longer prompts out, and count them. Default: no limit. Evidence is never cut.",
)
@click.option("--resume", is_flag=True, help="Go on where a judge that broke off left: its opinions are kept.")
@click.option("--overwrite", is_flag=True, help="Drop what a judge that broke off left, and ask everything again.")
def judge(
    result_path: Path,
    manifest: Path,
    judge_url: str,
    judge_model: str,
    output: Path,
    max_items: int | None,
    concurrency: int,
    timeout_s: float,
    max_tokens: int,
    max_prompt_chars: int | None,
    resume: bool,
    overwrite: bool,
) -> None:
    """Ask an LLM how faithful the answers are to their prompts, and whether it prefers the cold or the warm one.

    Faithfulness is scored from 1 to 5. Cold and warm are compared twice, in both orders; a verdict that changes with
    the order counts for neither. Replies that cannot be read are counted and not guessed. The opinions stand beside
    the measured figures and replace none; no gate rests on them alone. A key is read from SEMBENCH_JUDGE_API_KEY.

    \b
    Example:
      sembench judge --result r.json --manifest m.jsonl --judge-url http://localhost:8000 \\
        --judge-model Qwen/Qwen2.5-32B-Instruct --output judged.json

    A judge that breaks off, or a run that is stopped, keeps its opinions: go on with --resume.
    """
    from sembench.judge import JudgeClient, KeptOpinions, judge_result
    from sembench.judge.client import API_KEY_VARIABLE
    from sembench.live.output import find_leftovers
    from sembench.partial import partial_path
    from sembench.terminal import ProgressBars

    result = read_json(result_path, Result)
    if sha256_of(manifest) != result.run.manifest_sha256:
        raise InputError(
            f"--manifest {manifest}: {result_path} was not run on it (its sha256 differs)", REFUSED_BY_FIGURES
        )
    items = load_manifest(manifest, max_items)
    if not any(record.arm in ("cold", "warm") and record.output for record in result.requests):
        raise InputError(f"{result_path}: holds no answers of a cold or warm arm to judge", REFUSED_BY_FIGURES)
    key = os.environ.get(API_KEY_VARIABLE)
    client = JudgeClient(judge_url, judge_model, api_key=key, timeout_s=timeout_s, max_tokens=max_tokens)
    how = {**client.identity, "max_prompt_chars": max_prompt_chars}
    resume = find_leftovers(output, resume=resume, overwrite=overwrite)
    try:
        client.check()
        kept = KeptOpinions.open(partial_path(output), result, how, resume=resume)
        with ProgressBars() as bars, closing(kept):
            judged = judge_result(
                result,
                items,
                client,
                kept,
                concurrency=concurrency,
                max_prompt_chars=max_prompt_chars,
                on_item=bars.counter("judging", len(items)),
            )
    finally:
        client.close()
    told = judged.aggregate.judge or {}
    if told["asked"] and told["failed"] == told["asked"]:
        kept.remove()
        why = f"no question was answered: {told['failure_samples'][0]}"
        raise InputError(f"--judge-url {judge_url}: {why}", REFUSED_OUTSIDE)
    write_atomically(output, judged.model_dump_json(indent=1))
    kept.remove()
    _print(told, output)


def _print(told: dict[str, Any], output: Path) -> None:
    for arm in ("cold", "warm"):
        figure = told[f"faithfulness_{arm}"]
        mean = "not known" if figure["mean"] is None else f"{figure['mean']:.2f} of 5"
        click.echo(f"faithfulness, {arm}: {mean} (n={figure['n']})")
    pairwise = dict(told["pairwise"])
    total = pairwise.pop("n")
    click.echo(f"cold against warm (n={total}): " + ", ".join(f"{name} {count}" for name, count in pairwise.items()))
    click.echo(f"{told['asked']} questions, {told['unreadable_replies']} replies not readable, {told['failed']} failed")
    if told["prompts_too_long"]:
        click.echo(f"{told['prompts_too_long']} items left out: their prompts are too long (--max-prompt-chars)")
    click.echo(f"An opinion beside the measured figures: {output}")
