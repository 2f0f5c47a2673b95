"""``sembench`` commands on results: gates, merging, return on reuse, report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from sembench.cli.options import FILE, FiniteRange, Words
from sembench.schema import EngineSummary, Interval, NoiseFloor, Result, naming, read_json, write_atomically
from sembench.terminal import table_console

_SHARE = FiniteRange(0, 1)
_AT_LEAST_0 = FiniteRange(min=0)
_WIDTH = 160
"""Where stdout is no terminal: a table in a CI log must not be folded into columns of three letters."""

_GATES: tuple[tuple[str, Any, str], ...] = (
    ("--min-quality-pass-rate", _SHARE, "Share of items with accepted answers that were answered well enough."),
    ("--min-semantic-placement-rate", _SHARE, "Share of items for which at least one token was placed."),
    ("--min-backend-confirmed-block-rate", _SHARE, "Share of all prompt blocks that the backend confirmed."),
    ("--min-materialization-events", click.IntRange(min=0), "Requests for which KV landed, by the backend's events."),
    ("--min-materialized-tokens", click.IntRange(min=0), "Tokens that landed, by the backend's events."),
    ("--min-blended-ttft-speedup", _AT_LEAST_0, "Median of cold by warm TTFT, over hits and misses."),
    ("--max-negative-control-confirmed-rate", _SHARE, "Share of the controls' blocks that the backend confirmed."),
    ("--max-negative-control-speedup-deviation", _AT_LEAST_0, "How far from 1 the controls' median speedup may be."),
    (
        "--max-warm-vs-cold-rouge-drop",
        _SHARE,
        "How far the ROUGE-L of warm answers against cold ones may be below that of cold against cold. Needs "
        "--noise-floor-calibration.",
    ),
    (
        "--min-judge-faithfulness",
        FiniteRange(1, 5),
        "Mean score of the LLM judge for warm answers. Only beside another gate on quality.",
    ),
)
_PRESENT_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _gate_options(command: Any) -> Any:
    for name, kind, text in reversed(_GATES):
        command = click.option(name, type=kind, help=text)(command)
    return command


@click.command()
@click.option("--result", "result_path", type=FILE, required=True, help="The result to judge.")
@click.option(
    "--engine-summary",
    "summary_paths",
    cls=Words,
    type=FILE,
    help="Summaries of engine logs (summarize-engine-events), joined to the result by request id: they tell what the "
    "result does not know, and must not contradict it.",
)
@click.option("--noise-floor-calibration", type=FILE, help="Noise floor (calibrate-noise-floor) of the same protocol.")
@_gate_options
@click.option("--require-materialized-reuse", is_flag=True, help="Tokens landed, in at least one backend event.")
@click.option("--require-no-engine-errors", is_flag=True, help="The engine's logs hold no error.")
@click.option("--allow-missing", is_flag=True, help="A gate whose figure is missing is not judged, instead of failing.")
def assert_result_gates(
    result_path: Path,
    summary_paths: tuple[Path, ...],
    noise_floor_calibration: Path | None,
    allow_missing: bool,
    **gates: Any,
) -> None:
    """Hold a result against gates; exit code 1 with all reasons where one fails.

    A gate whose figure was not measured fails: null is not 0 and not a pass. Only gates that are named are judged, and
    at least one must be.

    \b
    Example:
      sembench assert-result-gates --result r.json --engine-summary events.json \\
        --min-quality-pass-rate 0.80 --require-materialized-reuse --require-no-engine-errors
    """
    from sembench.results.gates import Wanted, judge_gates

    wanted = Wanted(**gates)
    _check_gates(wanted.names, noise_floor_calibration)
    report = judge_gates(
        wanted,
        read_json(result_path, Result),
        [read_json(path, EngineSummary) for path in summary_paths if path.exists()],
        read_json(noise_floor_calibration, NoiseFloor) if noise_floor_calibration else None,
        allow_missing=allow_missing,
        missing_summaries=[str(path) for path in summary_paths if not path.exists()],
    )
    table = Table("gate", "wanted", "found", "verdict", "source", box=SIMPLE_HEAD, pad_edge=False)
    words = {True: "pass", False: "FAIL", None: "not judged"}
    for verdict in report.verdicts:
        table.add_row(*map(Text, (verdict.gate, verdict.wanted, verdict.found, words[verdict.passed], verdict.source)))
    table_console(_WIDTH).print(table)
    for note in report.notes:
        click.echo(f"note: {note}", err=True)
    for verdict in report.verdicts:
        if verdict.passed is not True:
            click.echo(f"{verdict.gate}: {words[verdict.passed]}: {verdict.reason}", err=True)
    if report.failures:
        raise click.exceptions.Exit(1)


def _check_gates(names: list[str], noise_floor: Path | None) -> None:
    if not names:
        raise click.UsageError("no gate is named, so there is nothing to judge; see --help")
    quality = {"min_quality_pass_rate", "max_warm_vs_cold_rouge_drop"}
    if "min_judge_faithfulness" in names and not quality & set(names):
        raise click.UsageError(
            "--min-judge-faithfulness alone says too little: a judge is never the only quality gate; add "
            "--min-quality-pass-rate or --max-warm-vs-cold-rouge-drop"
        )
    if "max_warm_vs_cold_rouge_drop" in names and noise_floor is None:
        raise click.UsageError(
            "--max-warm-vs-cold-rouge-drop needs --noise-floor-calibration: without it noise looks like a drop"
        )


@click.command()
@click.option("--cold", "cold_path", type=FILE, required=True, help="The run whose cold arm counts.")
@click.option("--warm", "warm_path", type=FILE, required=True, help="The run whose warm arm counts.")
@click.option("--manifest", "-m", type=FILE, help="The manifest of both runs. Default: where they say it is.")
@click.option("--output", "-o", type=FILE, required=True, help="Where the merged result goes.")
def merge_results(cold_path: Path, warm_path: Path, manifest: Path | None, output: Path) -> None:
    """Pair a cold and a warm run of one manifest, item by item, such as a stock engine's with SemBlend's.

    Refused with exit code 1 and the reasons: swapped files, another manifest, model, engine, template or output
    length, and a cold arm that was warm or is not proved cold.

    \b
    Example:
      sembench merge-results --cold stock.json --warm semblend.json --output paired.json
    """
    from sembench.results.merge import merge_results as merge

    result = merge(read_json(cold_path, Result), read_json(warm_path, Result), manifest)
    write_atomically(output, result.model_dump_json(indent=1))
    pairs = result.paired.clean_pairs if result.paired else 0
    click.echo(f"{pairs} clean pairs of {result.aggregate.items} items: {output}")
    for reason, count in (result.paired.dropped if result.paired else {}).items():
        click.echo(f"  left out: {count} {reason.replace('_', ' ')}", err=True)


@click.command()
@click.option("--result", "result_path", type=FILE, required=True, help="A paired result.")
@click.option("--hit-rate", type=_SHARE, help="Hit rate of your traffic. Default: the one measured, on this manifest.")
@click.option("--gpu-hour-cost", type=_AT_LEAST_0, help="Price of the serving GPUs per hour.")
@click.option("--prefill-cost-per-1k-tokens", type=_AT_LEAST_0, help="Price of 1,000 prompt tokens.")
@click.option("--output", "-o", type=FILE, help="Also write the figures here (JSON).")
def roi(
    result_path: Path,
    hit_rate: float | None,
    gpu_hour_cost: float | None,
    prefill_cost_per_1k_tokens: float | None,
    output: Path | None,
) -> None:
    """The hit rate from which reuse pays, from measured times: what a hit gains against what a miss costs.

    Needs clean pairs with and without reuse; refused with exit code 1 where one is missing. The two prices are two
    views of one saving and are never added.

    \b
    Example:
      sembench roi --result paired.json --gpu-hour-cost 4.0 --hit-rate 0.3
    """
    from sembench.results.roi import Prices, return_on_reuse

    told = return_on_reuse(read_json(result_path, Result), Prices(prefill_cost_per_1k_tokens, gpu_hour_cost), hit_rate)
    if output:
        write_atomically(output, told.model_dump_json(indent=1))
    rate = told.hit_rate
    parts = "assumed" if rate.numerator is None else f"{rate.numerator:g} of {rate.denominator:g} pairs"
    table = Table("figure", "value", box=SIMPLE_HEAD, pad_edge=False)
    table.add_row("a hit gains", _shown(told.gain_ms, " ms"))
    table.add_row("a miss costs", _shown(told.miss_tax_ms, " ms"))
    table.add_row(
        "break-even hit rate",
        _shown(told.break_even_hit_rate) if told.break_even_hit_rate.value is not None else "none: hits gain nothing",
    )
    table.add_row("hit rate", f"{rate.value:.3f} ({parts})")
    table.add_row("net per request at that rate", _shown(told.net_ms_per_request, " ms"))
    table.add_row(
        "tokens saved per hit / per request", f"{told.tokens_saved_per_hit:.0f} / {told.tokens_saved_per_request:.0f}"
    )
    for name, value in (
        ("GPU time saved, per 1,000 requests", told.gpu_cost_saved_per_1000_requests),
        ("prefill saved, per 1,000 requests", told.prefill_cost_saved_per_1000_requests),
    ):
        if value is not None:
            table.add_row(name, f"{value:.4g}")
    table_console(_WIDTH).print(table)
    if told.pairs_left_out:
        click.echo(f"note: {told.pairs_left_out} pairs are neither a hit nor a miss that is known as one", err=True)


def _shown(interval: Interval, unit: str = "") -> str:
    digits = ",.1f" if unit else ".3f"
    bounds = "" if interval.low is None else f", 95% {interval.low:{digits}} to {interval.high:{digits}}"
    value = "not known" if interval.value is None else f"{interval.value:{digits}}{unit}"
    return f"{value} (n={interval.n}{bounds})"


@click.command()
@click.argument("results", nargs=-1, required=True, type=_PRESENT_FILE, metavar="RESULT...")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The page to write; its folder is made.",
)
@click.option(
    "--compare",
    is_flag=True,
    help="Put the results side by side first. Needs two or more of the same manifest; where they cannot be compared, "
    "the page says why and shows no table.",
)
@click.option(
    "--engine-summary",
    "engine_summaries",
    cls=Words,
    type=_PRESENT_FILE,
    help="Summaries that summarize-engine-events wrote; shown beside the results.",
)
def report(results: tuple[Path, ...], output: Path, compare: bool, engine_summaries: tuple[Path, ...]) -> None:
    """Write one HTML page about one or several RESULT files.

    The page needs no network and no script. It reads on a phone, on paper, in light and in dark. What a result did not
    measure is called "not measured", and every rate stands with its numerator and denominator.

    \b
    Examples:
      sembench report results/demo.json --output report.html
      sembench report cold.json warm.json --compare -o compare.html
      sembench report live.json --engine-summary engine.json -o report.html
    """
    from sembench.report import write_report

    if compare and len(results) < 2:
        raise click.UsageError("--compare needs two or more results, and one was given")
    read = [read_json(path, Result) for path in results]
    summaries = [read_json(path, EngineSummary) for path in engine_summaries]
    with naming(f"--output {output}"):
        write_report(read, output, names=_names(results), compare=compare, engine_summaries=summaries)
    click.echo(f"Report: {output.resolve()}")


def _names(paths: tuple[Path, ...]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join((*path.parts[-depth:-1], path.stem)) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{n}: {path}" for n, path in enumerate(paths, 1)]
