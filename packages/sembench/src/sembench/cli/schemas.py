"""``sembench schemas``."""

from __future__ import annotations

from pathlib import Path

import click

from sembench.schema import InputError, write_atomically


@click.command()
@click.option(
    "--output-dir",
    default=Path("docs/schemas"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the schemas; made if it is not there.",
)
def schemas(output_dir: Path) -> None:
    """Write the JSON Schemas of the formats: a manifest's item, a result, an engine summary.

    \b
    Example:
      sembench schemas --output-dir schemas/

    A manifest is JSON lines: its schema is that of one line.
    """
    from sembench.schema.publish import schema_files

    for name, text in schema_files().items():
        try:
            write_atomically(output_dir / name, text)
        except OSError as error:
            raise InputError(f"--output-dir {output_dir}: {error.strerror or error}") from None
        click.echo(output_dir / name)
