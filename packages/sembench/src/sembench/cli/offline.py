"""``sembench run-offline``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sembench.cli.options import FiniteRange
from sembench.exit_codes import REFUSED_BY_FIGURES
from sembench.schema import InputError, Result, naming, write_atomically


@click.command()
@click.option(
    "--manifest",
    "-m",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Manifest (JSON lines) from `sembench build`.",
)
@click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Result file to write; parent folders are made.",
)
@click.option("--block-size", default=16, show_default=True, type=click.IntRange(min=1), help="Tokens per block.")
@click.option(
    "--tokenizer",
    metavar="NAME",
    help="A tokenizer.json or a folder holding one, `smollm2`, or a hub id such as Qwen/Qwen2.5-7B-Instruct. "
    "Default: words-v1, built in and without dependencies.",
)
@click.option(
    "--provider",
    default="core",
    show_default=True,
    metavar="NAME",
    help="core: SemBlend, with its SEMBLEND_* settings. exact: equal blocks only. peer: the public semblend 0.3.25. "
    "module:attr: any factory of a SemanticLookupProvider; it gets settings= and block_size= if it takes them.",
)
@click.option(
    "--min-similarity",
    type=FiniteRange(0, 1),
    help="peer: least similarity at which it picks a donor (default 0.60). Core has no use for it: it goes by tokens.",
)
@click.option(
    "--fuzzy/--no-fuzzy",
    default=None,
    help="core: also look for the short equal runs between small edits (SEMBLEND_FUZZY_CHUNKS; default: as set there).",
)
@click.option("--max-items", type=click.IntRange(min=1), help="Use only the first items of the manifest.")
@click.option(
    "--shared-pool",
    is_flag=True,
    help="Offer the donors of all items first, then look up each recipient among all of them. Negative controls are "
    "none then (another item may hold their document) and get no figures.",
)
@click.option(
    "--peer-python",
    type=click.Path(path_type=Path),
    envvar="SEMBENCH_PEER_PYTHON",
    show_envvar=True,
    help="Python of the environment that holds the peer.",
)
@click.option(
    "--peer-env", multiple=True, metavar="NAME=VALUE", help="A setting of the peer's own; may be given several times."
)
def run_offline(manifest: Path, output: Path, **options: Any) -> None:
    """Measure what could be reused, from tokens alone: no engine, no model, no GPU.

    For each item the donors are offered to a provider, the recipient is looked up, and its full blocks are counted:
    those that an exact cache covers, those that the provider proposes from donors, and those among them that come from
    one donor at consecutive positions. Nothing is loaded, so everything that only a backend can confirm stays null.

    \b
    Examples:
      sembench run-offline --manifest m.jsonl --output r.json
      sembench run-offline -m m.jsonl -o r.json --tokenizer smollm2 --fuzzy
      sembench run-offline -m m.jsonl -o r.json --provider exact
      sembench run-offline -m m.jsonl -o r.json --provider mypackage.lookup:make_provider

    An item whose provider fails, or proposes tokens that differ from the donor's, is recorded as an error with its
    reason, and the run goes on. Exit code 1 if every item failed.
    """
    from sembench.offline.result import print_summary

    result = _run(manifest, options)
    with naming(f"--output {output}"):
        write_atomically(output, result.model_dump_json(indent=1) + "\n")
    print_summary(result)
    click.echo(f"Result: {output}")
    failed = [record for record in result.requests if record.status == "error"]
    if len(failed) == len(result.requests):
        raise InputError(f"every item failed, the first with: {failed[0].error}", REFUSED_BY_FIGURES)


def _run(manifest: Path, options: dict[str, Any]) -> Result:
    from sembench.identity import identify, load_manifest
    from sembench.offline.providers import ProviderOptions, open_provider
    from sembench.offline.replay import replay_offline
    from sembench.offline.result import build_offline_result
    from sembench.terminal import ProgressBars
    from sembench.tokenization import load_tokenizer

    items = load_manifest(manifest, options["max_items"])
    tokenizer = load_tokenizer(options["tokenizer"])
    provider, describe = open_provider(
        options["provider"],
        ProviderOptions(
            block_size=options["block_size"],
            min_similarity=options["min_similarity"],
            fuzzy=options["fuzzy"],
            peer_python=options["peer_python"],
            peer_variables=_variables(options["peer_env"]),
        ),
    )
    identity = identify("offline", manifest, len(items))
    try:
        with ProgressBars() as bars:
            advance = bars.counter("items", len(items))
            run = replay_offline(
                items, tokenizer, provider, options["block_size"], shared_pool=options["shared_pool"], on_item=advance
            )
    finally:
        provider.close()
    config = {
        "tokenizer": tokenizer.name,
        "tokenizer_digest": tokenizer.digest,
        "provider": describe(),
        "max_items": options["max_items"],
    }
    return build_offline_result(identity, config, items, run, options["block_size"], shared_pool=options["shared_pool"])


def _variables(settings: tuple[str, ...]) -> dict[str, str]:
    for setting in settings:
        if not setting.partition("=")[1] or not setting.partition("=")[0]:
            raise click.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint="--peer-env")
    return dict(setting.split("=", 1) for setting in settings)
