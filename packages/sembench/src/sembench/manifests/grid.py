"""The profile published-v1: the datasets of the published tables, at each of several lengths of the prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from sembench.manifests.corpora import open_corpora
from sembench.manifests.items import BuildOptions, Built, ReportProgress, build_items, ignore_progress
from sembench.manifests.packing import CountTokens, Packing, pack
from sembench.manifests.profiles import FoundStrangers
from sembench.manifests.text_units import ESTIMATE_METHOD, estimate_tokens

PUBLISHED_BANDS = (2_000, 4_000, 8_000, 16_000, 32_000)


@dataclass(frozen=True)
class Grid:
    """Which documents there are to be."""

    datasets: tuple[str, ...] = ()
    """Empty: all of ``source``, or all that the hub has."""
    bands_tokens: tuple[int, ...] = PUBLISHED_BANDS
    sources_per_band: int = 1
    """Documents of each dataset and length."""
    source: Path | None = None
    revision: str | None = None


def build_published_manifest(
    options: BuildOptions,
    grid: Grid,
    *,
    count: CountTokens = estimate_tokens,
    counted_by: str = ESTIMATE_METHOD,
    report: ReportProgress = ignore_progress,
) -> Built:
    """All the transforms of each document. A dataset with too few rows gives fewer documents, and this is told."""
    corpora, origin = open_corpora(grid.datasets, grid.source, grid.revision)
    asked = {
        "datasets": [corpus.dataset for corpus in corpora],
        "bands_tokens": list(grid.bands_tokens),
        "sources_per_band": grid.sources_per_band,
        "lengths_counted_by": counted_by,
        **origin,
    }
    recorded = replace(options, extra={**asked, **options.extra})
    built = Built()
    for done, band in enumerate(grid.bands_tokens, 1):
        sources = []
        for corpus in corpora:
            found = list(islice(pack(corpus, Packing(band, count, options.seed)), grid.sources_per_band))
            sources += found
            if len(found) < grid.sources_per_band:
                built.skipped[f"{corpus.dataset}: text for {len(found)} documents of {band:,} tokens only"] += 1
        strangers = FoundStrangers(sources, [], options.seed)
        part = build_items(sources, recorded, strangers.for_)
        built.items += part.items
        built.skipped += part.skipped
        report("lengths", done, len(grid.bands_tokens))
    return built
