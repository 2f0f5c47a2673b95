"""``sembench build``, ``checksum-manifest``, ``audit-manifest``, ``freeze`` and ``verify-frozen``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sembench.cli.options import FiniteRange, Words
from sembench.exit_codes import REFUSED_BY_FIGURES
from sembench.schema import (
    FACT_TRANSFORMS,
    PRIVACY_TRANSFORMS,
    SIMILARITY_TRANSFORMS,
    TRANSFORMS,
    InputError,
    naming,
    read_json,
    write_atomically,
)

_BANDS = ("2k", "4k", "8k", "16k")
_GENERATED = ("fixture", "synthetic-v1")
_READ = ("longbench-v1", "longbench-v2", "published-v1")
_ONLY_FOR = {
    "source": _READ,
    "hf_revision": _READ,
    "length_bands": ("synthetic-v1", "published-v1"),
    "sources_per_band": ("synthetic-v1", "published-v1"),
    "tokenizer": ("published-v1",),
    "datasets": ("synthetic-v1", *_READ),
    "max_items_per_dataset": ("synthetic-v1", "longbench-v1", "longbench-v2"),
}

_manifest = click.option(
    "--manifest",
    "-m",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Manifest (JSON lines) from `sembench build`.",
)


@click.command()
@click.option(
    "--profile",
    required=True,
    type=click.Choice([*_GENERATED, *_READ]),
    help="fixture: 14 items that show every transform. synthetic-v1: generated support cases, contracts and logs. "
    "longbench-v1, longbench-v2: rows of those datasets, or of a local folder (--source). published-v1: CNN/DailyMail, "
    "MultiNews, SAMSum, XSum, WikiHow, LongBench and WildChat, or a folder, at given lengths.",
)
@click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Manifest to write; parent folders are made.",
)
@click.option(
    "--datasets",
    cls=Words,
    metavar="NAME...",
    help="Datasets of LongBench, domains of synthetic-v1 (support_tickets contract_review log_triage), or for "
    "published-v1 names such as EdinburghNLP/xsum or xsum. Default: the ten English and code sets of LongBench v1, or "
    "all that there are.",
)
@click.option(
    "--max-items-per-dataset",
    type=click.IntRange(min=1),
    metavar="N",
    help="Rows (sources) taken of each dataset; each gives one item per transform. Default: 10 of LongBench, all of "
    "synthetic-v1.",
)
@click.option(
    "--transforms",
    cls=Words,
    metavar="NAME...",
    help=f"Default: {', '.join(TRANSFORMS)}. Also, for run-privacy: {' and '.join(PRIVACY_TRANSFORMS)}; "
    f"for what answers may quietly get wrong: {', '.join(FACT_TRANSFORMS)}; for bands of similarity: "
    f"{', '.join(SIMILARITY_TRANSFORMS)}.",
)
@click.option(
    "--max-segments",
    default=4,
    show_default=True,
    type=click.IntRange(min=2),
    help="Most segments that a document is cut into, for rag_reorder, multi_donor_composite and multi_turn.",
)
@click.option(
    "--min-segment-chars",
    default=400,
    show_default=True,
    type=click.IntRange(min=1),
    help="Fewest characters of a segment; a document too short for two is left out of those transforms.",
)
@click.option("--hf-revision", metavar="REV", help="Commit of the dataset on its hub. Default: a pinned one.")
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Local folder instead of the hub: one <dataset>.jsonl per dataset with its published fields (published-v1: or "
    ".csv, .parquet), or .txt, .rst and .md files.",
)
@click.option("--seed", default=7, show_default=True, help="Same inputs, options and seed: the same bytes.")
@click.option(
    "--length-bands",
    cls=Words,
    metavar="TOKENS...",
    help=f"synthetic-v1, published-v1: lengths of prompts. Default: {' '.join(_BANDS)}, and 32k for published-v1.",
)
@click.option(
    "--sources-per-band",
    type=click.IntRange(min=1),
    metavar="N",
    help="synthetic-v1, published-v1: documents of each length and domain or dataset. Default: 1.",
)
@click.option("--tokenizer", metavar="NAME", help="published-v1: count lengths with it. Default: an estimate.")
def build(profile: str, output: Path, **options: Any) -> None:
    """Write a manifest: donors, the recipient that is measured after them, its question and accepted answers.

    \b
    Examples:
      sembench build --profile fixture --output manifests/fixture.jsonl
      sembench build --profile synthetic-v1 --length-bands 2k 8k --sources-per-band 4 -o m.jsonl
      sembench build --profile synthetic-v1 --length-bands 400 --sources-per-band 3 \\
        --transforms private_preamble planted_context -o privacy.jsonl
      sembench build --profile longbench-v1 --datasets qasper qmsum --max-items-per-dataset 10 -o m.jsonl
      sembench build --profile longbench-v1 --source my-texts/ --transforms rag_reorder negative_control -o m.jsonl
      sembench build --profile published-v1 --datasets xsum samsum --length-bands 4k 8k -o m.jsonl

    Nothing is fetched for fixture and synthetic-v1. See docs/DATASET.md for what each transform does.
    """
    for name, profiles in _ONLY_FOR.items():
        if options[name] not in (None, ()) and profile not in profiles:
            raise click.UsageError(f"--{name.replace('_', '-')} is for {' and '.join(profiles)}, not for {profile}")
    from sembench.manifests import write_manifest
    from sembench.manifests.display import print_built
    from sembench.terminal import ProgressBars

    with ProgressBars() as bars:
        built = _built(profile, options, bars.show)
    if not built.items:
        reasons = "\n".join(f"  {reason}" for reason in built.skipped)
        raise InputError(f"no item could be built:\n{reasons}")
    with naming(f"--output {output}"):
        digest = write_manifest(output, built.items)
    print_built(built, output, digest)


def _built(profile: str, options: dict[str, Any], report: Any) -> Any:
    from sembench.manifests import BuildOptions
    from sembench.manifests.profiles import (
        DOMAIN_NAMES,
        MAX_ITEMS_PER_DATASET,
        build_fixture_manifest,
        build_longbench_manifest,
        build_synthetic_manifest,
    )

    shared = BuildOptions(
        profile,
        options["seed"],
        tuple(dict.fromkeys(options["transforms"])) or TRANSFORMS,
        options["max_segments"],
        options["min_segment_chars"],
    )
    datasets = tuple(dict.fromkeys(options["datasets"]))
    if profile == "fixture":
        return build_fixture_manifest(shared, report)
    if profile == "published-v1":
        return build_published(shared, options, report)
    if profile == "synthetic-v1":
        bands = read_bands(options["length_bands"] or _BANDS)
        return build_synthetic_manifest(
            shared,
            datasets or DOMAIN_NAMES,
            bands,
            options["sources_per_band"] or 1,
            max_per_domain=options["max_items_per_dataset"],
            report=report,
        )
    return build_longbench_manifest(
        shared,
        version=int(profile[-1]),
        datasets=datasets,
        max_items_per_dataset=options["max_items_per_dataset"] or MAX_ITEMS_PER_DATASET,
        source=options["source"],
        revision=options["hf_revision"],
        report=report,
    )


def build_published(shared: Any, options: dict[str, Any], report: Any) -> Any:
    """``options``: datasets, source, hf_revision, length_bands, sources_per_band and tokenizer, as they were typed."""
    from sembench.manifests.grid import PUBLISHED_BANDS, Grid, build_published_manifest
    from sembench.tokenization import load_tokenizer

    grid = Grid(
        tuple(dict.fromkeys(options["datasets"])),
        read_bands(options["length_bands"]) or PUBLISHED_BANDS,
        options["sources_per_band"] or 1,
        options["source"],
        options["hf_revision"],
    )
    if options["tokenizer"] is None:
        return build_published_manifest(shared, grid, report=report)
    tokenizer = load_tokenizer(options["tokenizer"])
    return build_published_manifest(
        shared, grid, count=lambda text: len(tokenizer.encode(text)), counted_by=tokenizer.name, report=report
    )


def read_bands(bands: Sequence[str]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_tokens(band) for band in bands))


def _tokens(band: str) -> int:
    match = re.fullmatch(r"(\d+)(k?)", band.strip().lower())
    tokens = int(match.group(1)) * (1000 if match.group(2) else 1) if match else 0
    if not 200 <= tokens <= 256_000:
        raise click.BadParameter(
            f"{band!r}: expected tokens, 200 to 256k, such as 1500 or 8k", param_hint="--length-bands"
        )
    return tokens


@click.command("checksum-manifest")
@_manifest
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Also write the line here.")
def checksum_manifest(manifest: Path, output: Path | None) -> None:
    """Print the sha256 of a manifest, as sha256sum does, after checking that every line is an item.

    \b
    Example:
      sembench checksum-manifest --manifest m.jsonl --output m.jsonl.sha256
    """
    from sembench.identity import load_manifest
    from sembench.manifests import sha256

    load_manifest(manifest)
    line = f"{sha256(manifest)}  {manifest}"
    if output:
        with naming(f"--output {output}"):
            write_atomically(output, line + "\n")
    click.echo(line)


@click.command("audit-manifest")
@_manifest
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write the audit as JSON.")
@click.option("--block-size", default=16, show_default=True, type=click.IntRange(min=1), help="Tokens per block.")
@click.option(
    "--tokenizer",
    metavar="NAME",
    help="A tokenizer.json or a folder holding one, `smollm2`, or a hub id. Default: words-v1, built in.",
)
@click.option(
    "--boilerplate-share",
    default=0.5,
    show_default=True,
    type=FiniteRange(0, 1),
    help="Evidence that more than this share of all sources (and three at least) have in common is boilerplate.",
)
def audit_manifest(
    manifest: Path, output: Path | None, block_size: int, tokenizer: str | None, boilerplate_share: float
) -> None:
    """Look for blocks that a donor shares with a recipient of another source: such a hit would prove nothing.

    A run of --block-size tokens, at any offset, in the evidence of a recipient and in that of a donor of another source
    is a violation. Instructions and wrappers are the same everywhere by design and are counted apart. Exit code 1 with
    examples where there are violations.

    \b
    Examples:
      sembench audit-manifest --manifest m.jsonl
      sembench audit-manifest --manifest m.jsonl --tokenizer Qwen/Qwen2.5-7B-Instruct --output audit.json
    """
    from sembench.identity import load_manifest
    from sembench.manifests import audit, sha256
    from sembench.manifests.display import print_audit
    from sembench.terminal import ProgressBars
    from sembench.tokenization import load_tokenizer

    items = load_manifest(manifest)
    encoder = load_tokenizer(tokenizer)
    with ProgressBars() as bars:
        found = audit.audit_manifest(
            items,
            encoder,
            block_size,
            boilerplate_share,
            manifest=str(manifest),
            manifest_sha256=sha256(manifest),
            report=bars.show,
        )
    if output:
        with naming(f"--output {output}"):
            write_atomically(output, found.model_dump_json(indent=1) + "\n")
    print_audit(found)
    if found.violations:
        raise InputError(f"{manifest}: {found.violations} blocks are shared by unrelated sources", REFUSED_BY_FIGURES)


@click.command()
@_manifest
@click.option(
    "--spec", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File to write; JSON, worth keeping."
)
def freeze(manifest: Path, spec: Path) -> None:
    """Record what a manifest is: its sha256, counts, builder version, seed and options, and a digest of every item.

    \b
    Example:
      sembench freeze --manifest m.jsonl --spec m.frozen.json
    """
    from sembench.manifests import frozen

    record = frozen.freeze(manifest)
    with naming(f"--spec {spec}"):
        write_atomically(spec, record.model_dump_json(indent=1) + "\n")
    click.echo(f"{spec}: {record.items} items, sha256 {record.sha256}")


@click.command("verify-frozen")
@_manifest
@click.option(
    "--spec",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What `sembench freeze` wrote.",
)
def verify_frozen(manifest: Path, spec: Path) -> None:
    """Compare a manifest with its frozen record. Exit code 1 with each difference.

    \b
    Example:
      sembench verify-frozen --manifest m.jsonl --spec m.frozen.json
    """
    from sembench.manifests import frozen

    record = read_json(spec, frozen.FrozenSpec)
    found = frozen.find_differences(record, frozen.freeze(manifest))
    if found:
        listed = "\n".join(f"  {line}" for line in found)
        raise InputError(f"{manifest} is not what {spec} recorded:\n{listed}", REFUSED_BY_FIGURES)
    click.echo(f"{manifest}: as frozen, {record.items} items, sha256 {record.sha256}")
