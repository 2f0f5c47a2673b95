"""``sembench`` commands that talk to a running server: replay, calibration, preflight."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from sembench.cli.options import (
    FILE,
    FiniteRange,
    max_output_tokens_option,
    serve_command_option,
    template_option,
    tenant_option,
)
from sembench.exit_codes import REFUSED_BY_FIGURES
from sembench.identity import load_manifest
from sembench.live.config import API_KEY_VARIABLE, REUSE_OFF, LiveConfig, clean_url, open_client
from sembench.schema import InputError, write_atomically

Command = TypeVar("Command", bound=Callable[..., Any])


SERVER_OPTIONS = (
    click.option("--model", required=True, help="The model's name as the server lists it."),
    template_option,
    click.option(
        "--reset-url",
        "reset_urls",
        multiple=True,
        metavar="URL",
        help="POST here empties the server's KV cache. Without it, vLLM's /reset_prefix_cache and SGLang's "
        "/flush_cache are tried. May be given several times, once for each worker.",
    ),
    click.option("--worker-url", metavar="URL", help="The engine behind the gateway: there its reset is looked for."),
    max_output_tokens_option,
    click.option(
        "--quality-threshold",
        type=FiniteRange(0, 1),
        default=0.60,
        show_default=True,
        help="What the best of F1, ROUGE-L and token recall must reach for an answer to pass.",
    ),
    tenant_option,
    click.option(
        "--reuse-off",
        default=json.dumps(REUSE_OFF),
        show_default=True,
        metavar="JSON",
        help="Body fields that switch semantic reuse off for a request: sent with cold, exact and probe requests where "
        "the server accepts them. {} sends none.",
    ),
    click.option(
        "--warmup-requests",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        help="Unmeasured requests before the first item, as long as the longest prompt and unrelated to all of them.",
    ),
    click.option(
        "--retries",
        type=click.IntRange(min=0),
        default=2,
        show_default=True,
        help="After a broken connection, a time-out, a 5xx or a 429; never after another 4xx.",
    ),
    click.option("--timeout-s", type=FiniteRange(0.1), default=120.0, show_default=True, help="Per request."),
    serve_command_option,
    click.option("--seed", default=0, show_default=True, help="Sent to servers that take one; kept in the result."),
)
_SHARED = (
    click.option("--manifest", "-m", type=FILE, required=True, help="What to serve, from `sembench build`."),
    click.option("--output", "-o", type=FILE, required=True, help="Where the JSON goes; its folder is made."),
    click.option("--max-items", type=click.IntRange(min=1), help="Serve only the first so many items."),
    *SERVER_OPTIONS,
)

RECIPIENT_OPTIONS = (
    click.option("--donor-url", metavar="URL", help="Donors are served here instead, such as at one worker."),
    click.option(
        "--post-donor-delay-ms",
        type=FiniteRange(min=0),
        default=1000.0,
        show_default=True,
        help="Wait between donors and recipient, for caches that store in the background. Never part of a latency.",
    ),
    click.option(
        "--block-size", type=click.IntRange(min=1), default=16, show_default=True, help="Tokens of a block, for rates."
    ),
    click.option(
        "--connector-audit",
        type=FILE,
        help="SemBlend's audit stream of the server (SEMBLEND_AUDIT_PATH there), read at the end. Without it nothing "
        "is known to be reused, and confirmed figures stay null.",
    ),
    click.option("--resume", is_flag=True, help="Go on where a stopped run of the same command left off."),
    click.option("--overwrite", is_flag=True, help="Drop what a stopped run left, and start anew."),
)
"""Of commands that serve donors and then recipients."""

_REPLAY = (
    click.option(
        "--concurrency",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Items in flight. Above 1 arms are kept apart by cache salts or a new first line, never by resets.",
    ),
    click.option(
        "--paired/--no-paired",
        default=False,
        show_default=True,
        help="Serve every recipient cold first, proved cold by the engine's own count of cached tokens.",
    ),
    click.option("--exact", is_flag=True, help="With --paired: the cold prompt again, from the engine's prefix cache."),
    click.option("--probe", is_flag=True, help="The warm prompt again with reuse off: did approximate KV stay behind?"),
    click.option(
        "--donor-output-tokens", type=click.IntRange(min=1), default=1, show_default=True, help="Per donor's answer."
    ),
    click.option("--capture-logprobs", is_flag=True, help="Keep the log-probabilities of the answers' tokens."),
    *RECIPIENT_OPTIONS,
)


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command()
@click.option("--gateway-url", required=True, metavar="URL", help="An OpenAI-compatible server or gateway.")
@with_options(*_SHARED, *_REPLAY)
def run_live_gateway(gateway_url: str, **options: Any) -> None:
    """Replay a manifest against any OpenAI-compatible server, and time every recipient.

    For each item the donors are served, then the recipient. Time to first token runs from sending the request to the
    first chunk with text. With --paired the same recipient is first served cold, and only pairs whose cold arm the
    engine itself shows to be cold count for the speedup.

    \b
    Example:
      sembench run-live-gateway -m m.jsonl -o r.json --gateway-url http://localhost:8000 --model NAME --paired --exact

    A run that was stopped, even by SIGKILL, goes on with --resume. SEMBENCH_API_KEY, where set, is sent as bearer token
    and written nowhere. Exit codes: 1 no clean pair or no answer at all, 2 wrong input, 3 the server was refused.
    """
    _replay(options, engine="openai", url=clean_url("--gateway-url", gateway_url))


@click.command()
@click.option("--base-url", required=True, metavar="URL", help="An SGLang server.")
@with_options(*_SHARED, *_REPLAY)
def run_live_sglang(base_url: str, **options: Any) -> None:
    """Replay a manifest against an SGLang server through /generate, with /flush_cache before cold arms.

    The protocol is that of run-live-gateway; see its help. With --template chat the server's OpenAI API is used, which
    counts cached tokens only if it was started with --enable-cache-report.

    \b
    Example:
      sembench run-live-sglang -m m.jsonl -o r.json --base-url http://localhost:30000 --model NAME --paired
    """
    _replay(options, engine="sglang", url=clean_url("--base-url", base_url))


@click.command()
@click.option("--gateway-url", metavar="URL", help="An OpenAI-compatible server or gateway.")
@click.option("--base-url", metavar="URL", help="Or an SGLang server.")
@click.option("--repeats", type=click.IntRange(min=2), default=2, show_default=True, help="Cold servings per prompt.")
@with_options(*_SHARED)
def calibrate_noise_floor(gateway_url: str | None, base_url: str | None, repeats: int, **options: Any) -> None:
    """Serve the same prompts cold, repeatedly: differences below this floor are no effect of reuse.

    Writes ROUGE-L between the servings, how many are the same text, the spread of their TTFT ratios and the differences
    of their answer scores. `assert-result-gates --max-warm-vs-cold-rouge-drop` needs the file.

    \b
    Example:
      sembench calibrate-noise-floor -m m.jsonl -o floor.json --gateway-url http://localhost:8000 --model NAME
    """
    from sembench.live.display import print_noise_floor, record_counter
    from sembench.live.noise_floor import calibrate
    from sembench.terminal import ProgressBars

    if (gateway_url is None) == (base_url is None):
        raise click.UsageError("give one of --gateway-url and --base-url")
    engine, option = ("openai", "--gateway-url") if gateway_url else ("sglang", "--base-url")
    manifest, output = options.pop("manifest"), options.pop("output")
    config = make_config({**options, "paired": True}, engine, clean_url(option, gateway_url or base_url or ""))
    items = load_manifest(manifest, config.max_items)
    with ProgressBars() as bars:
        on_record = record_counter(bars, len(items) * repeats)
        floor = asyncio.run(calibrate(config, manifest, items, repeats, on_record, api_key()))
    write_atomically(output, floor.model_dump_json(indent=1))
    print_noise_floor(floor)
    click.echo(f"written: {output}")
    if not floor.pairs:
        raise InputError("no pair of servings is proved cold: there is no floor in the file", REFUSED_BY_FIGURES)


@click.command()
@click.option("--url", required=True, metavar="URL", help="The server or gateway.")
@click.option("--model", default="", help="The model that must be served; the first listed one if not given.")
@click.option("--engine", type=click.Choice(["openai", "sglang"]), default="openai", show_default=True, help="Its API.")
@click.option("--template", type=click.Choice(["completion", "chat"]), default="completion", show_default=True)
@click.option("--reset-url", "reset_urls", multiple=True, metavar="URL", help="As for run-live-gateway.")
@click.option("--timeout-s", type=FiniteRange(0.1), default=60.0, show_default=True, help="Per request.")
def verify_endpoint(url: str, model: str, engine: str, reset_urls: tuple[str, ...], **options: Any) -> None:
    """Ask a server all that a replay needs: reachable, model, streaming, usage, cached tokens, salts, reset.

    Each ability is tried, not believed: a short prompt is served, repeated, repeated under another cache salt and after
    a reset. This empties the server's KV cache where it has a reset. Exit code 3 when a replay would be refused.

    \b
    Example:
      sembench verify-endpoint --url http://localhost:8000 --model NAME
    """
    from sembench.live.display import print_preflight
    from sembench.live.preflight import Preflight, preflight

    values = {"model": model, "reset_urls": reset_urls, "reuse_off": json.dumps(REUSE_OFF), **options}
    config = make_config(values, engine, clean_url("--url", url))

    async def ask() -> Preflight:
        async with open_client(api_key(), 1) as client:
            return await preflight(config.endpoint(client), reset_urls=config.reset_urls, reuse_off=config.reuse_off)

    found = asyncio.run(ask())
    print_preflight(found)
    found.require()


def _replay(options: dict[str, Any], *, engine: str, url: str) -> None:
    from sembench.live.display import print_result, record_counter
    from sembench.live.output import find_leftovers, refuse_empty, replay_to_file
    from sembench.terminal import ProgressBars

    manifest, output = options.pop("manifest"), options.pop("output")
    resume, overwrite = options.pop("resume"), options.pop("overwrite")
    config = make_config(options, engine, url)
    items = load_manifest(manifest, config.max_items)
    resume = find_leftovers(output, resume=resume, overwrite=overwrite)
    with ProgressBars() as bars:
        on_record = record_counter(bars, len(items) * len(config.arms))
        result = replay_to_file(config, manifest, items, output, on_record, api_key(), resume=resume)
    print_result(result)
    click.echo(f"written: {output}")
    refuse_empty(result, output)


def make_config(options: dict[str, Any], engine: str, url: str) -> LiveConfig:
    if options.get("exact") and not options.get("paired"):
        raise click.UsageError("--exact repeats the cold request: it needs --paired")
    values = {**options, "engine": engine, "url": url, "reuse_off": _reuse_off(options["reuse_off"])}
    for name in ("donor_url", "worker_url"):
        if values.get(name):
            values[name] = clean_url(f"--{name.replace('_', '-')}", values[name])
    for reset_url in values["reset_urls"]:
        clean_url("--reset-url", reset_url)
    audit = values.get("connector_audit")
    return LiveConfig.model_validate(values | {"connector_audit": str(audit) if audit else None})


def _reuse_off(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"--reuse-off: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise click.BadParameter("--reuse-off: must be a JSON object")
    return fields


def api_key() -> str | None:
    return os.environ.get(API_KEY_VARIABLE) or None
