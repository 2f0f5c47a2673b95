"""``sembench run-privacy``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sembench.cli.options import FILE, FiniteRange, Words, serve_command_option

if TYPE_CHECKING:
    from sembench.privacy.arms import PrivacyArm
    from sembench.privacy.run import PrivacyRun
    from sembench.privacy.trials import Question


@click.command(name="run-privacy")
@click.option("--manifest", "-m", type=FILE, required=True, help="With private_preamble or planted_context items.")
@click.option("--output", "-o", type=FILE, required=True, help="Result file, written after every document.")
@click.option("--arms", cls=Words, metavar="NAME...", help="Only these, see below.  [default: all]")
@click.option("--max-questions", type=click.IntRange(min=1), help="Only the first so many questions (12 donors each).")
@click.option(
    "--model",
    metavar="NAME",
    help="Embedded: a model folder, a GGUF file or a hub id.  [default: SmolLM2-135M-Instruct]  With --url: the "
    "model's name as the server lists it, required.",
)
@click.option("--url", metavar="URL", help="A running server instead of the embedded engine.")
@click.option("--engine", type=click.Choice(["vllm", "sglang"]), default="vllm", show_default=True, help="At --url.")
@click.option(
    "--answer-tokens", type=click.IntRange(min=1), default=8, show_default=True, help="Length of greedy answers."
)
@click.option(
    "--post-donor-delay-ms",
    type=FiniteRange(min=0),
    default=300.0,
    show_default=True,
    help="With --url: wait between donor and question, for a server that keeps KV in the background.",
)
@click.option("--timeout-s", type=FiniteRange(0.1), default=120.0, show_default=True, help="Per request, with --url.")
@serve_command_option
def run_privacy(manifest: Path, output: Path, max_questions: int | None, url: str | None, **options: Any) -> None:
    """What a client learns of a text in front of a document that another client sent: leak and influence.

    \b
    sembench build --profile synthetic-v1 --length-bands 400 --sources-per-band 3 \\
      --transforms private_preamble planted_context --output privacy.jsonl
    sembench run-privacy --manifest privacy.jsonl --output privacy.json
    sembench report privacy.json --output privacy.html

    For each document and each of twelve candidates, a donor is served that names the candidate in front of the
    document. Then somebody asks who knows the document only, and reads the twelve log-probabilities. The rank of the
    one that was named is 5.5 by chance and 0 where everything leaks; ties count as half.

    \b
    Arms on any engine: reuse_off, no_salts (a server's own SEMBLEND_SHARING; salted on the embedded engine),
      separate_salts, one_salt, one_salt_alone (the donor is the document with nothing in front).
    Embedded engine only, sharing all, without salts: all_fast, all_balanced, all_strict (the tiers),
      all_rotate_only, all_attention_15, _30, _50, all_deviation_50 (recompute policies and their share),
      all_mean_shift (the correction).

    A server must give log-probabilities of chosen tokens: vLLM's logprob_token_ids, SGLang's token_ids_logprob. Without
    salts it is told to forget its KV before each donor. The key in SEMBENCH_API_KEY is sent along.
    """
    from sembench.identity import load_manifest
    from sembench.privacy.table import print_figures
    from sembench.privacy.trials import group_trials
    from sembench.terminal import ProgressBars

    questions = group_trials(load_manifest(manifest))[:max_questions]
    run = _on_server(manifest, questions, url, options) if url else _on_embedded(manifest, questions, options)
    with ProgressBars() as bars:
        run.measure(output, bars)
    print_figures(run.figures(), output)


def _on_embedded(manifest: Path, questions: Sequence[Question], options: dict[str, Any]) -> PrivacyRun:
    from sembench.embedded.config import EmbeddedConfig, require_embedded_extra

    require_embedded_extra()
    from sembench.embedded.model import EmbeddedModel
    from sembench.identity import identify
    from sembench.privacy.arms import EMBEDDED_ARMS, choose_arms
    from sembench.privacy.on_embedded import EmbeddedBench
    from sembench.privacy.run import PrivacyRun

    arms = choose_arms(options["arms"], EMBEDDED_ARMS)
    config = EmbeddedConfig(model=options["model"], template="none", max_output_tokens=options["answer_tokens"])
    model = EmbeddedModel.open(config)
    identity = identify("privacy", manifest, _count(questions), engine=model.describe(), device=model.device)
    return PrivacyRun(EmbeddedBench(model, config), arms, questions, identity, _kept(options, model.name, arms))


def _on_server(manifest: Path, questions: Sequence[Question], url: str, options: dict[str, Any]) -> PrivacyRun:
    import httpx

    from sembench.identity import identify
    from sembench.live.config import API_KEY_VARIABLE, clean_url
    from sembench.privacy.arms import LIVE_ARMS, choose_arms
    from sembench.privacy.on_server import ServerBench
    from sembench.privacy.run import PrivacyRun

    if not options["model"]:
        raise click.UsageError("--url needs --model: the model's name as the server lists it")
    arms = choose_arms(options["arms"], LIVE_ARMS)
    base, key = clean_url("--url", url), os.environ.get(API_KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    bench = ServerBench(
        httpx.Client(base_url=base, headers=headers, timeout=options["timeout_s"]),
        options["engine"],
        options["model"],
        settle_s=options["post_donor_delay_ms"] / 1e3,
        answer_tokens=options["answer_tokens"],
    )
    told = {"name": bench.kind, "model": bench.model, "url": base}
    identity = identify(
        "privacy", manifest, _count(questions), engine=told, serve_command=options["serve_command"], device="server"
    )
    return PrivacyRun(bench, arms, questions, identity, _kept(options, bench.model, arms))


def _kept(options: dict[str, Any], model: str, arms: Sequence[PrivacyArm]) -> dict[str, Any]:
    """What decides the figures, for the result."""
    return {"model": model, "answer_tokens": options["answer_tokens"], "arms": [arm.as_json() for arm in arms]}


def _count(questions: Sequence[Question]) -> int:
    return sum(len(question.trials) for question in questions)
