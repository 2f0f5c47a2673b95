"""The profiles over other people's texts: longbench-v1 and longbench-v2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sembench.manifests import hub
from sembench.manifests.domains import DOMAINS
from sembench.manifests.draws import Draws
from sembench.manifests.folder import Grouped, read_folder
from sembench.manifests.items import BuildOptions, Built, Report, build_items, unreported
from sembench.manifests.longbench import V1_DATASETS, V1Row, V2Row, source_of_v1, source_of_v2
from sembench.manifests.source import Source
from sembench.manifests.synthetic import SyntheticWriter
from sembench.manifests.text_units import estimate_tokens
from sembench.schema import InputError

Row = TypeVar("Row", bound=BaseModel)

MAX_ITEMS_PER_DATASET = 10
"""Rows taken of each dataset where nothing else is asked for."""
_LONGEST_GENERATED = 16_000


def longbench_manifest(
    options: BuildOptions,
    *,
    version: int,
    datasets: tuple[str, ...] = (),
    max_items_per_dataset: int = MAX_ITEMS_PER_DATASET,
    source: Path | None = None,
    revision: str | None = None,
    report: Report = unreported,
) -> Built:
    """The first rows of each dataset, from a local folder or from the hub at a pinned revision."""
    origin: dict[str, Any]
    if source is not None:
        grouped, digest = read_folder(source, version, datasets, options.seed)
        origin = {"source_sha256": digest}
    else:
        revision = revision or (hub.V1_REVISION if version == 1 else hub.V2_REVISION)
        grouped = _from_hub(version, datasets, revision)
        origin = {"repository": hub.V1_REPOSITORY if version == 1 else hub.V2_REPOSITORY, "revision": revision}
    asked = {"datasets": sorted(grouped), "max_items_per_dataset": max_items_per_dataset, **origin}
    used = [row for rows in grouped.values() for row in rows[:max_items_per_dataset]]
    _refuse_doubles(used)
    spare = [row for rows in grouped.values() for row in rows[max_items_per_dataset:]]
    strangers = _Strangers(used, spare, options.seed)
    return build_items(used, replace(options, extra={**asked, **options.extra}), strangers.for_, report)


class _Strangers:
    """Donors of another domain: best a row that is used for nothing else, else any, else a generated text."""

    def __init__(self, used: list[Source], spare: list[Source], seed: int) -> None:
        self._used = used
        self._spare = spare
        self._seed = seed
        self._writer = SyntheticWriter(seed)

    def for_(self, source: Source) -> Source:
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
            file = hub.v1_file(name, revision)
            grouped[name] = [source_of_v1(_valid(V1Row, row, file), name) for row in hub.hub_rows(file)]
        return grouped
    file = hub.v2_file(revision)
    for row in hub.hub_rows(file):
        source = source_of_v2(_valid(V2Row, row, file), None)
        if not datasets or source.dataset in datasets:
            grouped.setdefault(source.dataset, []).append(source)
    missing = [name for name in datasets if name not in grouped]
    if missing:
        raise InputError(f"--datasets {' '.join(missing)}: LongBench v2 has no such domain")
    return grouped


def _valid(model: type[Row], row: dict[str, Any], file: str) -> Row:
    try:
        return model.model_validate(row)
    except ValidationError as error:
        problem = error.errors()[0]
        raise InputError(f"{file}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None


def _refuse_doubles(sources: list[Source]) -> None:
    """Two rows of one name would give two items of one id."""
    seen: set[tuple[str, str]] = set()
    for source in sources:
        key = (source.dataset, source.source_id)
        if key in seen:
            raise InputError(f"--source: dataset {source.dataset}: _id: {source.source_id!r} is there twice")
        seen.add(key)
