"""``sembench simulate``, ``replay-trace`` and ``serve-simulator``: the eviction laboratory."""

from __future__ import annotations

from pathlib import Path

import click

from sembench.cli.options import FILE, FiniteRange, Words
from sembench.schema import InputError

OUTPUT_DIR = click.Path(file_okay=False, path_type=Path)
plots_option = click.option("--plots/--no-plots", default=True, show_default=True, help="Whether to draw the figures.")
policies_option = click.option(
    "--policies", cls=Words, metavar="NAME...", help="Policies to compare.  [default: all, or those of the experiment]"
)
semantics_option = click.option(
    "--semantics",
    type=click.Choice(["prefix", "block", "span"]),
    help="How the cache finds blocks: behind the same beginning, by content, or as runs at any place.",
)


@click.command()
@click.option("--config", "configs", cls=Words, metavar="FILE_OR_NAME...", help="Experiments: YAML files, or names.")
@click.option("--all", "everything", is_flag=True, help="All shipped experiments, and an aggregate summary.")
@click.option("--list", "listing", is_flag=True, help="Show the shipped experiments and end.")
@click.option("--check", is_flag=True, help="Check policies, experiments and the HTTP application; run nothing long.")
@click.option(
    "--output-dir",
    type=OUTPUT_DIR,
    default=Path("outputs/experiments"),
    show_default=True,
    help="Each run gets a folder <timestamp>_<experiment_id> in it.",
)
@click.option("--seeds", type=click.IntRange(min=1), help="Drawings of the workload, instead of the experiment's.")
@click.option("--requests", type=click.IntRange(min=1), help="Requests per drawing, instead of the experiment's.")
@click.option("--cache-token-budget", type=click.IntRange(min=1), help="Instead of the experiment's.")
@semantics_option
@policies_option
@plots_option
def simulate(
    configs: tuple[str, ...],
    everything: bool,
    listing: bool,
    check: bool,
    output_dir: Path,
    seeds: int | None,
    requests: int | None,
    cache_token_budget: int | None,
    semantics: str | None,
    policies: tuple[str, ...],
    plots: bool,
) -> None:
    """Compare eviction policies on seeded workloads in a cache of limited size.

    Every policy serves the same requests, drawn with 20 seeds unless told otherwise. Figures are means with 95%
    intervals over the seeds. The last column is Belady's: the best that anyone could do who knew the future. All times
    are simulated estimates, not measured GPU latency.

    \b
    Examples:
      sembench simulate --all
      sembench simulate --config low_memory_rag_stress
      sembench simulate --config my_experiment.yaml --policies lru adaptive_semantic --seeds 5
      sembench simulate --list
      sembench simulate --check

    A run writes results.json, metrics.csv, summary.md and six figures; --all also writes aggregate_summary.csv and
    aggregate_summary.md. A folder appears when it is complete.
    """
    from sembench.laboratory.config import load_experiment, shipped_experiments

    if listing or check:
        _list() if listing else _check()
        return
    if everything == bool(configs):
        raise click.UsageError("give --config NAME or --all, one of them; --list shows the experiments")
    changes = {
        "seeds": seeds,
        "requests": requests,
        "cache_token_budget": cache_token_budget,
        "semantics": semantics,
        "policies": list(policies) or None,
    }
    chosen = [load_experiment(name, **changes) for name in (shipped_experiments() if everything else configs)]
    _run(chosen, output_dir, plots, aggregate=everything or len(chosen) > 1)


def _run(chosen: list, output_dir: Path, plots: bool, *, aggregate: bool) -> None:  # type: ignore[type-arg]
    from sembench.laboratory.experiment import run_experiment, steps_of
    from sembench.laboratory.outputs import write_aggregate, write_run
    from sembench.laboratory.plots import require_plots
    from sembench.laboratory.screen import print_result
    from sembench.terminal import ProgressBars

    if plots:
        require_plots()
    results = []
    for config in chosen:
        with ProgressBars() as bars:
            result = run_experiment(config, bars.counter(config.experiment_id, steps_of(config)))
        print_result(result)
        click.echo(f"written: {write_run(result, output_dir, plots=plots)}")
        results.append(result)
    if aggregate:
        for path in write_aggregate(results, output_dir):
            click.echo(f"written: {path}")


def _list() -> None:
    from sembench.laboratory.config import load_experiment, shipped_experiments

    for name in shipped_experiments():
        config = load_experiment(name)
        click.echo(f"{name}: {config.description} ({config.semantics}, {config.budget_tokens:,} tokens)")


def _check() -> None:
    from sembench.laboratory.self_check import self_check

    for line in self_check():
        click.echo(line)


@click.command("replay-trace")
@click.option(
    "--trace", required=True, type=click.Path(exists=True, path_type=Path), help="A file, or a folder of them."
)
@click.option(
    "--format",
    "form",
    default="auto",
    show_default=True,
    help="jsonl, json, csv, mooncake, azure or kv-cache-tester; auto looks at the file.",
)
@click.option("--cache-token-budget", type=click.IntRange(min=1), help="Tokens that the cache holds.")
@click.option(
    "--cache-share",
    type=FiniteRange(0, 1, min_open=True),
    help="Instead: this share of all different tokens of the trace.",
)
@policies_option
@semantics_option
@click.option("--calibrate-from-trace", is_flag=True, help="Fit base and token latency to the trace's observed TTFT.")
@click.option("--costs-file", type=FILE, help="Step costs that an engine learned, from SEMBLEND_COST_DIR.")
@click.option("--base-ttft-ms", type=FiniteRange(min=0), help="Of the latency model.  [default: 80]")
@click.option("--token-latency-ms", type=FiniteRange(min=0), help="Of the latency model.  [default: 0.08]")
@click.option("--max-requests", type=click.IntRange(min=1), help="Only the first so many.")
@click.option("--output-dir", type=OUTPUT_DIR, default=Path("outputs/traces"), show_default=True)
@click.option("--output-name", help="Of the folder, behind its timestamp.  [default: the trace's name]")
@plots_option
def replay_trace(
    trace: Path,
    form: str,
    cache_token_budget: int | None,
    cache_share: float | None,
    policies: tuple[str, ...],
    semantics: str | None,
    calibrate_from_trace: bool,
    costs_file: Path | None,
    base_ttft_ms: float | None,
    token_latency_ms: float | None,
    max_requests: int | None,
    output_dir: Path,
    output_name: str | None,
    plots: bool,
) -> None:
    """Replay a trace of real or collected requests through several policies.

    \b
    Examples:
      sembench replay-trace --trace trace.jsonl --cache-token-budget 50000 \\
          --policies lru adaptive_semantic static_semantic
      sembench replay-trace --trace trace.jsonl --calibrate-from-trace --cache-token-budget 50000
      sembench replay-trace --trace conversation_trace.jsonl --format mooncake --cache-share 0.05 --semantics block

    Writes replay_results.json, replay_metrics.csv, replay_summary.md and four figures. What this shows is how many
    tokens each policy would have kept on these requests. It is no measurement of a GPU.
    """
    from sembench.laboratory.config import cache_settings
    from sembench.laboratory.experiment import run_replay
    from sembench.laboratory.latency import calibrated_latency
    from sembench.laboratory.outputs import write_run
    from sembench.laboratory.plots import require_plots
    from sembench.laboratory.screen import print_result
    from sembench.laboratory.trace_facts import budget_of_share, facts_of, name_of
    from sembench.laboratory.traces import read_trace
    from sembench.terminal import ProgressBars

    if (cache_token_budget is None) == (cache_share is None):
        raise click.UsageError("give --cache-token-budget or --cache-share, one of them")
    numbers = {"base_ttft_ms": base_ttft_ms, "token_latency_ms": token_latency_ms}
    given = {name: value for name, value in numbers.items() if value is not None}
    if sum((calibrate_from_trace, costs_file is not None, bool(given))) > 1:
        raise click.UsageError(
            "the latency model is --calibrate-from-trace, --costs-file or the two numbers: one of them"
        )
    name = name_of(trace, output_name)
    if plots:
        require_plots()
    requests = read_trace(trace, form, max_requests)
    settings = cache_settings(
        cache_token_budget=cache_token_budget or budget_of_share(requests, cache_share or 0.0),
        semantics=semantics,
        policies=list(policies) or None,
        latency={**given, "costs_file": None if costs_file is None else str(costs_file)},
    )
    model = calibrated_latency(requests) if calibrate_from_trace else settings.latency.model()
    with ProgressBars() as bars:
        counter = bars.counter("policies", len(settings.policies) + 1)
        result = run_replay(name, requests, settings, model, facts_of(requests, trace), counter)
    print_result(result)
    click.echo(f"written: {write_run(result, output_dir, plots=plots)}")


@click.command("serve-simulator")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at. There is no login.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option(
    "--output-dir", type=OUTPUT_DIR, default=Path("outputs"), show_default=True, help="Where experiments are written."
)
@click.option("--cache-token-budget", type=click.IntRange(min=1), help="Of the live caches.  [default: 50000]")
@semantics_option
@policies_option
def serve_simulator(
    host: str,
    port: int,
    output_dir: Path,
    cache_token_budget: int | None,
    semantics: str | None,
    policies: tuple[str, ...],
) -> None:
    """Serve the laboratory over HTTP, with a page to run an experiment and see its figures.

    \b
    Examples:
      sembench serve-simulator
      uvicorn sembench.laboratory.http:app
      curl http://127.0.0.1:8000/health

    GET / is the page, GET /docs lists the routes.
    """
    from semblend_core import MissingExtraError, require_extra

    try:
        require_extra("fastapi", distribution="sembench", extra="laboratory")
        require_extra("uvicorn", distribution="sembench", extra="laboratory")
    except MissingExtraError as error:
        raise InputError(str(error)) from None
    import uvicorn

    from sembench.laboratory.config import cache_settings
    from sembench.laboratory.http.application import DEFAULT_BUDGET, create_app

    settings = cache_settings(
        cache_token_budget=cache_token_budget or DEFAULT_BUDGET, semantics=semantics, policies=list(policies) or None
    )
    click.echo(f"http://{host}:{port}/ (Ctrl+C ends it)", err=True)
    uvicorn.run(create_app(output_dir, settings), host=host, port=port, log_level="warning")
