"""``sembench run-load``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sembench.cli.options import (
    FILE,
    FiniteRange,
    Words,
    max_output_tokens_option,
    serve_command_option,
    template_option,
    tenant_option,
)
from sembench.exit_codes import REFUSED_BY_FIGURES

_ABOVE_ZERO = FiniteRange(min=0, min_open=True)
_DEFAULT_CONCURRENCY = (1, 2, 4, 8)


@click.command()
@click.option("--manifest", "-m", type=FILE, required=True, help="Whose prompts are sent, from `sembench build`.")
@click.option("--output", "-o", type=FILE, required=True, help="Where the JSON goes; its folder is made.")
@click.option("--gateway-url", required=True, metavar="URL", help="An OpenAI-compatible server or gateway.")
@click.option("--model", required=True, help="The model's name as the server lists it.")
@click.option(
    "--concurrency",
    cls=Words,
    type=click.IntRange(min=1),
    metavar="N...",
    help="Closed loop: requests in flight, one point for each number.  [default: 1 2 4 8, unless --rate is given]",
)
@click.option(
    "--rate",
    "rates",
    cls=Words,
    type=_ABOVE_ZERO,
    metavar="PER_S...",
    help="Open loop: arrivals per second at random (Poisson) times, one point for each number.",
)
@click.option("--duration", type=_ABOVE_ZERO, default=30.0, show_default=True, help="Seconds measured per point.")
@click.option(
    "--warmup",
    type=FiniteRange(min=0),
    default=5.0,
    show_default=True,
    help="Seconds of load before, not counted.",
)
@click.option(
    "--min-requests",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="A point lasts longer than --duration where fewer requests than these would be due in it.",
)
@click.option(
    "--reuse-share",
    "reuse_shares",
    cls=Words,
    type=FiniteRange(0, 1),
    default=(0.0, 1.0),
    show_default="0.0 1.0",
    metavar="SHARE...",
    help="Share of requests whose evidence was served before, as donors. The others share nothing with any request.",
)
@max_output_tokens_option
@click.option("--timeout-s", type=_ABOVE_ZERO, default=120.0, show_default=True, help="Per request, and for the end.")
@click.option(
    "--max-in-flight",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Open loop: beyond this, requests wait in the generator, and their wait counts.",
)
@click.option("--max-items", type=click.IntRange(min=1), help="Use only the first so many items of the manifest.")
@template_option
@tenant_option
@serve_command_option
@click.option("--seed", default=0, show_default=True, help="Of arrivals and of the order of recipients.")
def run_load(
    manifest: Path,
    output: Path,
    gateway_url: str,
    model: str,
    concurrency: tuple[int, ...],
    rates: tuple[float, ...],
    duration: float,
    warmup: float,
    min_requests: int,
    reuse_shares: tuple[float, ...],
    max_output_tokens: int,
    timeout_s: float,
    max_in_flight: int,
    max_items: int | None,
    template: str,
    tenant: str,
    serve_command: str | None,
    seed: int,
) -> None:
    """Put load on a server: throughput, TTFT and latency over concurrency or arrival rate, without and with reuse.

    A closed loop (--concurrency) keeps so many requests in flight: it shows what the server can do. An open loop
    (--rate) sends requests whether or not earlier ones are answered, and counts latency from when each was due: it
    shows what users would wait. Service time, from the sending, and the backlog stand beside it.

    Every prompt starts with a line of its own, so no request is answered from an exact prefix cache. Donors are served
    before every point with reuse, and are not counted.

    \b
    Examples:
      sembench run-load -m m.jsonl -o load.json --gateway-url http://localhost:8000 --model NAME
      sembench run-load -m m.jsonl -o load.json --gateway-url http://localhost:8000 --model NAME \\
          --rate 1 2 4 --reuse-share 0 0.5 1 --duration 60
      sembench report load.json -o load.html

    SEMBENCH_API_KEY, where set, is sent as bearer token and written nowhere. The result is written after every point.
    Exit codes: 1 no request was answered, 2 wrong input, 3 the server was refused or went away.
    """
    from sembench.identity import load_manifest
    from sembench.live.config import API_KEY_VARIABLE, clean_url
    from sembench.load.client import Target
    from sembench.load.point import LoadPoint
    from sembench.load.run import LoadRun, LoadSweep
    from sembench.load.screen import PointObserver, print_points
    from sembench.schema import InputError
    from sembench.terminal import ProgressBars

    items = load_manifest(manifest, max_items)
    levels = concurrency or (() if rates else _DEFAULT_CONCURRENCY)
    sweep = LoadSweep(levels, rates, reuse_shares, duration, warmup, min_requests, max_in_flight, seed)
    target = Target(
        clean_url("--gateway-url", gateway_url),
        model,
        template,
        max_output_tokens,
        timeout_s,
        tenant,
        os.environ.get(API_KEY_VARIABLE) or None,
        seed,
    )
    run = LoadRun(sweep, target, manifest, items, serve_command)
    try:
        with ProgressBars(refresh_by_hand=True) as bars:
            result = run.measure(output, PointObserver(bars, len(list(sweep.points()))).observe)
    except KeyboardInterrupt:
        click.echo(f"stopped; the points that were complete are in {output}", err=True)
        raise
    print_points([LoadPoint.model_validate(entry) for entry in result.load or ()])
    click.echo(f"written: {output}")
    if not result.aggregate.requests_ok:
        raise InputError(f"no request was answered; {output} says why", REFUSED_BY_FIGURES)
