"""``sembench report``."""

from __future__ import annotations

from pathlib import Path

import click

from sembench.cli.options import Words

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("results", nargs=-1, required=True, type=_FILE, metavar="RESULT...")
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
    type=_FILE,
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
    from sembench.schema import EngineSummary, InputError, Result, read_json

    if compare and len(results) < 2:
        raise click.UsageError("--compare needs two or more results, and one was given")
    read = [read_json(path, Result) for path in results]
    summaries = [read_json(path, EngineSummary) for path in engine_summaries]
    try:
        write_report(read, output, names=_names(results), compare=compare, engine_summaries=summaries)
    except OSError as error:
        raise InputError(f"--output {output}: {error.strerror or error}") from None
    click.echo(f"Report: {output.resolve()}")


def _names(paths: tuple[Path, ...]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join((*path.parts[-depth:-1], path.stem)) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{n}: {path}" for n, path in enumerate(paths, 1)]
