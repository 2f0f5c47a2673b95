"""The profiles of ``sembench build``: fixture and synthetic-v1 need no data, longbench-v1 and longbench-v2 do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sembench.manifests.domains import DOMAINS, Domain
from sembench.manifests.draws import Draws
from sembench.manifests.folder import Grouped, read_folder
from sembench.manifests.items import BuildOptions, Built, ReportProgress, build_items, ignore_progress
from sembench.manifests.longbench import (
    V1_DATASETS,
    V1_REPOSITORY,
    V1_REVISION,
    V2_REPOSITORY,
    V2_REVISION,
    V1Row,
    V2Row,
    hub_rows,
    make_source_v1,
    make_source_v2,
    v1_file,
    v2_file,
)
from sembench.manifests.source import SourceDocument
from sembench.manifests.synthetic import SyntheticWriter
from sembench.manifests.text_units import estimate_tokens
from sembench.schema import TRANSFORMS, InputError, ManifestItem

DOMAIN_NAMES = tuple(DOMAINS)
BANDS_TOKENS = (2_000, 4_000, 8_000, 16_000)
_FIXTURE_BAND = 1_100
AnyRow = TypeVar("AnyRow", bound=BaseModel)
MAX_ITEMS_PER_DATASET = 10
"""Rows taken of each dataset where nothing else is asked for."""
_LONGEST_GENERATED = 16_000


def build_synthetic(
    *,
    seed: int,
    domains: tuple[str, ...] = DOMAIN_NAMES,
    bands_tokens: tuple[int, ...] = BANDS_TOKENS,
    transforms: tuple[str, ...] = TRANSFORMS,
    sources_per_band: int = 1,
) -> list[ManifestItem]:
    """Generated items: ``sources_per_band`` documents for each domain and length, each with all the transforms.

    A band is the length of a whole prompt in tokens, by estimate. No two documents share a block of 16 tokens.
    """
    options = BuildOptions("synthetic-v1", seed, transforms)
    return build_synthetic_manifest(options, domains, bands_tokens, sources_per_band).items


def build_synthetic_manifest(
    options: BuildOptions,
    domains: tuple[str, ...],
    bands_tokens: tuple[int, ...],
    sources_per_band: int,
    *,
    max_per_domain: int | None = None,
    report: ReportProgress = ignore_progress,
) -> Built:
    kinds = [_domain(name) for name in domains]
    lengths = [(band, number) for band in bands_tokens for number in range(sources_per_band)][:max_per_domain]
    keys = [(kind, f"{kind.name}-{band}-{number}", band) for band, number in lengths for kind in kinds]
    asked = {
        "domains": list(domains),
        "bands_tokens": list(bands_tokens),
        "sources_per_band": sources_per_band,
        "max_items_per_dataset": max_per_domain,
    }
    return _built(keys, replace(options, extra={**asked, **options.extra}), report)


def build_fixture(*, seed: int = 7) -> list[ManifestItem]:
    """A small manifest with every transform, one after another on a document of each domain in turn."""
    return build_fixture_manifest(BuildOptions("fixture", seed)).items


def build_fixture_manifest(options: BuildOptions, report: ReportProgress = ignore_progress) -> Built:
    writer = SyntheticWriter(options.seed)
    strangers = _WrittenStrangers(writer)
    built = Built()
    domains = list(DOMAINS.values())
    for number, transform in enumerate(options.transforms):
        domain = domains[number % len(domains)]
        band = _FIXTURE_BAND + 90 * (number % 5)
        swap = transform == "entity_swap_control"
        source = writer.write(domain, f"{domain.name}-{transform}", band, with_swap=swap)
        part = build_items([source], options, strangers.for_, claims=writer.claims, only=(transform,))
        built.items += part.items
        built.skipped += part.skipped
        report("items", number + 1, len(options.transforms))
    return built


class _WrittenStrangers:
    """Documents that are donors of negative controls and nothing else."""

    def __init__(self, writer: SyntheticWriter) -> None:
        self._writer = writer

    def for_(self, source: SourceDocument) -> SourceDocument:
        """Of the domain after the source's own."""
        place = DOMAIN_NAMES.index(source.domain)
        other = DOMAINS[DOMAIN_NAMES[(place + 1) % len(DOMAIN_NAMES)]]
        band = int(source.metadata["length_band"])
        return self._writer.write(other, f"{other.name}-unrelated-to-{source.source_id}", band, with_swap=False)


def _built(keys: list[tuple[Domain, str, int]], options: BuildOptions, report: ReportProgress) -> Built:
    writer = SyntheticWriter(options.seed)
    swap = "entity_swap_control" in options.transforms
    sources = []
    for kind, source_id, band in keys:
        sources.append(writer.write(kind, source_id, band, with_swap=swap))
        report("documents", len(sources), len(keys))
    return build_items(sources, options, _WrittenStrangers(writer).for_, report, writer.claims)


def _domain(name: str) -> Domain:
    if name not in DOMAINS:
        raise InputError(f"--datasets: {name!r} is none of the generated domains {', '.join(DOMAINS)}")
    return DOMAINS[name]


def build_longbench_manifest(
    options: BuildOptions,
    *,
    version: int,
    datasets: tuple[str, ...] = (),
    max_items_per_dataset: int = MAX_ITEMS_PER_DATASET,
    source: Path | None = None,
    revision: str | None = None,
    report: ReportProgress = ignore_progress,
) -> Built:
    """The first rows of each dataset, from a local folder or from the hub at a pinned revision."""
    origin: dict[str, Any]
    if source is not None:
        grouped, digest = read_folder(source, version, datasets, options.seed)
        origin = {"source_sha256": digest}
    else:
        revision = revision or (V1_REVISION if version == 1 else V2_REVISION)
        grouped = _from_hub(version, datasets, revision)
        origin = {"repository": V1_REPOSITORY if version == 1 else V2_REPOSITORY, "revision": revision}
    asked = {"datasets": sorted(grouped), "max_items_per_dataset": max_items_per_dataset, **origin}
    used = [row for rows in grouped.values() for row in rows[:max_items_per_dataset]]
    _refuse_doubles(used)
    spare = [row for rows in grouped.values() for row in rows[max_items_per_dataset:]]
    strangers = FoundStrangers(used, spare, options.seed)
    return build_items(used, replace(options, extra={**asked, **options.extra}), strangers.for_, report)


class FoundStrangers:
    """Donors of another domain: best a row that is used for nothing else, else any, else a generated text."""

    def __init__(self, used: list[SourceDocument], spare: list[SourceDocument], seed: int) -> None:
        self._used = used
        self._spare = spare
        self._seed = seed
        self._writer = SyntheticWriter(seed)

    def for_(self, source: SourceDocument) -> SourceDocument:
        draws = Draws(self._seed, source.dataset, source.source_id, "stranger")
        for rows in (self._spare, self._used):
            others = [row for row in rows if row.domain != source.domain]
            if others:
                return draws.pick(others)
        domain = draws.pick(list(DOMAINS.values()))
        tokens = min(_LONGEST_GENERATED, estimate_tokens(source.document))
        return self._writer.write(domain, f"unrelated-to-{source.source_id}", tokens, with_swap=False)


def _from_hub(version: int, datasets: tuple[str, ...], revision: str) -> Grouped:
    grouped: Grouped = {}
    if version == 1:
        for name in datasets or V1_DATASETS:
            file = v1_file(name, revision)
            grouped[name] = [make_source_v1(_valid(V1Row, row, file), name) for row in hub_rows(file)]
        return grouped
    file = v2_file(revision)
    for row in hub_rows(file):
        source = make_source_v2(_valid(V2Row, row, file), None)
        if not datasets or source.dataset in datasets:
            grouped.setdefault(source.dataset, []).append(source)
    missing = [name for name in datasets if name not in grouped]
    if missing:
        raise InputError(f"--datasets {' '.join(missing)}: LongBench v2 has no such domain")
    return grouped


def _valid(model: type[AnyRow], row: dict[str, Any], file: str) -> AnyRow:
    try:
        return model.model_validate(row)
    except ValidationError as error:
        problem = error.errors()[0]
        raise InputError(f"{file}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None


def _refuse_doubles(sources: list[SourceDocument]) -> None:
    """Two rows of one name would give two items of one id."""
    seen: set[tuple[str, str]] = set()
    for source in sources:
        key = (source.dataset, source.source_id)
        if key in seen:
            raise InputError(f"--source: dataset {source.dataset}: _id: {source.source_id!r} is there twice")
        seen.add(key)
