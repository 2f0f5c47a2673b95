"""The profiles that need no data: fixture and synthetic-v1."""

from __future__ import annotations

from dataclasses import replace

from sembench.manifests.domains import DOMAINS, Domain
from sembench.manifests.items import BuildOptions, Built, Report, build_items, unreported
from sembench.manifests.source import Source
from sembench.manifests.synthetic import SyntheticWriter
from sembench.schema import TRANSFORMS, InputError, ManifestItem

DOMAIN_NAMES = tuple(DOMAINS)
BANDS_TOKENS = (2_000, 4_000, 8_000, 16_000)
_FIXTURE_BAND = 1_100


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
    return synthetic_manifest(options, domains, bands_tokens, sources_per_band).items


def synthetic_manifest(
    options: BuildOptions,
    domains: tuple[str, ...],
    bands_tokens: tuple[int, ...],
    sources_per_band: int,
    *,
    max_per_domain: int | None = None,
    report: Report = unreported,
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
    return fixture_manifest(BuildOptions("fixture", seed)).items


def fixture_manifest(options: BuildOptions, report: Report = unreported) -> Built:
    writer = SyntheticWriter(options.seed)
    strangers = _Strangers(writer)
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


class _Strangers:
    """Documents that are donors of negative controls and nothing else."""

    def __init__(self, writer: SyntheticWriter) -> None:
        self._writer = writer

    def for_(self, source: Source) -> Source:
        """Of the domain after the source's own."""
        place = DOMAIN_NAMES.index(source.domain)
        other = DOMAINS[DOMAIN_NAMES[(place + 1) % len(DOMAIN_NAMES)]]
        band = int(source.metadata["length_band"])
        return self._writer.write(other, f"{other.name}-unrelated-to-{source.source_id}", band, with_swap=False)


def _built(keys: list[tuple[Domain, str, int]], options: BuildOptions, report: Report) -> Built:
    writer = SyntheticWriter(options.seed)
    swap = "entity_swap_control" in options.transforms
    sources = []
    for kind, source_id, band in keys:
        sources.append(writer.write(kind, source_id, band, with_swap=swap))
        report("documents", len(sources), len(keys))
    return build_items(sources, options, _Strangers(writer).for_, report, writer.claims)


def _domain(name: str) -> Domain:
    if name not in DOMAINS:
        raise InputError(f"--datasets: {name!r} is none of the generated domains {', '.join(DOMAINS)}")
    return DOMAINS[name]
