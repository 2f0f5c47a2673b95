"""``sembench`` commands that read what engines say: logs, audit streams, Prometheus counters."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sembench.cli.options import FILE, Words, timeout_option
from sembench.engine_events import ENGINES, collect_logs, summarize
from sembench.schema import EngineSummary, read_json, write_atomically

_ENGINE_ALIASES = {"trt-llm": "trtllm", "tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm"}


def _engine_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    name = _ENGINE_ALIASES.get(value.lower(), value.lower())
    if name not in ENGINES:
        raise click.BadParameter(f"{value!r} is none of {', '.join(ENGINES)}")
    return name


_engine_option = click.option(
    "--engine",
    required=True,
    callback=_engine_name,
    metavar="NAME",
    help=f"Whose format it is: {', '.join(ENGINES)}. semblend is our own audit stream; audit records between the lines "
    "of another engine's log are found too, and then they alone are counted.",
)


@click.command()
@_engine_option
@click.option(
    "--input",
    "inputs",
    cls=Words,
    type=FILE,
    required=True,
    help="Log files of one run, plain or gzip.",
)
@click.option("--output", "-o", type=FILE, required=True, help="Where the summary goes (JSON).")
def summarize_engine_events(engine: str, inputs: tuple[Path, ...], output: Path) -> None:
    """Count what an engine's log or audit stream says: donors, lookups, loads, and what really landed.

    Only `materialized` (vLLM: `SemBlend materialized`, SGLang: realized tokens, TensorRT-LLM: `materialized`) is reuse.
    LMCache's figures are an exact baseline and never semantic. A figure is null where the log cannot tell it.

    \b
    Example:
      sembench summarize-engine-events --engine vllm --input results/vllm.log --output results/events.json
    """
    summary = summarize(engine, inputs)
    write_atomically(output, summary.model_dump_json(indent=1))
    _print_summary(summary, output)


@click.command()
@_engine_option
@click.option("--namespace", "-n", required=True, help="Namespace of the pod.")
@click.option("--pod", required=True, help="The pod's name.")
@click.option("--container", help="Container of the pod; needed where it has several.")
@click.option("--since-time", metavar="TIME", help="Only what was logged since, such as 2026-06-22T18:00:00Z.")
@click.option("--output-log", type=FILE, required=True, help="Where the log goes.")
@click.option("--output-summary", type=FILE, required=True, help="Where the summary of its events goes (JSON).")
@timeout_option(120.0, "kubectl")
def collect_k8s_engine_events(
    engine: str,
    namespace: str,
    pod: str,
    container: str | None,
    since_time: str | None,
    output_log: Path,
    output_summary: Path,
    timeout_s: float,
) -> None:
    """Fetch a pod's log with `kubectl logs` and count its events.

    kubectl must be installed and allowed to read the pod's log. Where it is not, the exit code is 3.

    \b
    Example:
      sembench collect-k8s-engine-events --engine sglang --namespace inference --pod sglang-0 \\
        --since-time 2026-06-22T18:00:00Z --output-log results/sglang.log --output-summary results/events.json
    """
    click.echo(f"kubectl logs {pod} (namespace {namespace}) ...", err=True)
    said = collect_logs(
        namespace=namespace,
        pod=pod,
        container=container,
        since_time=since_time,
        output=output_log,
        timeout_s=timeout_s,
    )
    if said:  # Such as which pod of several it chose.
        click.echo(f"note: kubectl said: {said}", err=True)
    summary = summarize(engine, [output_log])
    write_atomically(output_summary, summary.model_dump_json(indent=1))
    _print_summary(summary, output_summary)


@click.command()
@click.option("--url", required=True, help="The metrics address, such as http://localhost:8000/metrics.")
@click.option("--output", "-o", type=FILE, required=True, help="Where the snapshot goes (JSON).")
@timeout_option(10.0, "the engine")
def engine_snapshot(url: str, output: Path, timeout_s: float) -> None:
    """Keep an engine's Prometheus counters as they are now, to compare them later with `engine-window`.

    \b
    Example:
      sembench engine-snapshot --url http://localhost:8000/metrics --output before.json
    """
    from sembench.prometheus import take_snapshot

    snapshot = take_snapshot(url, timeout_s)
    write_atomically(output, snapshot.model_dump_json(indent=1))
    click.echo(f"{len(snapshot.samples)} series of {url} at {snapshot.taken_at}: {output}")


@click.command()
@click.option("--before", type=FILE, required=True, help="Snapshot taken before the run.")
@click.option("--after", type=FILE, required=True, help="Snapshot taken after it, of the same address.")
@click.option("--output", "-o", type=FILE, required=True, help="Where the deltas and rates go (JSON).")
def engine_window(before: Path, after: Path, output: Path) -> None:
    """What an engine's counters did between two snapshots, and the rates made of that.

    A counter that fell was reset in between: its figure is null, and the output says so. Hits of an engine's prefix
    cache or connector are not semantic evidence by themselves.

    \b
    Example:
      sembench engine-window --before before.json --after after.json --output window.json
    """
    from sembench.prometheus import EngineSnapshot, compare_snapshots

    window = compare_snapshots(read_json(before, EngineSnapshot), read_json(after, EngineSnapshot))
    write_atomically(output, window.model_dump_json(indent=1))
    click.echo(f"{window.seconds:.1f} s, {len(window.deltas)} series changed: {output}")
    for name, rate in window.rates.items():
        click.echo(f"  {name}: {_number(rate.value)} ({_number(rate.numerator)} / {_number(rate.denominator)})")
    for series in window.resets:
        click.echo(f"  reset in between, nothing can be said of it: {series}", err=True)
    for remark in window.remarks:
        click.echo(f"  note: {remark}", err=True)


def _print_summary(summary: EngineSummary, output: Path) -> None:
    figures = {
        "donors registered": summary.donors_registered,
        "lookup hits (found, not reused)": summary.lookup_hits,
        "loads advertised": summary.loads_advertised,
        "materialization events": summary.materialization_events,
        "materialized tokens": summary.materialized_tokens,
        "tokens of aliases (no reuse)": summary.alias_tokens,
        "exact tokens retrieved": summary.exact_retrieved_tokens,
        "errors": summary.errors,
    }
    for name, value in figures.items():
        click.echo(f"{name:<32} {_number(value)}")
    if summary.declined:
        click.echo(f"{'declined':<32} {json.dumps(summary.declined)}")
    click.echo(f"{summary.lines} lines, {summary.unparsed_lines} unreadable events: {output}")
    for torn in summary.torn_lines:
        click.echo(f"note: {torn}", err=True)
    if summary.materialization_events is None and summary.engine != "lmcache":
        click.echo(f"note: no event of {summary.engine}'s format was found, so nothing is known of reuse", err=True)


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
