"""Manifests: building, writing, auditing and freezing them."""

from sembench.identity import sha256_of as sha256
from sembench.manifests.items import BUILDER_VERSION, BuildOptions, Built, format_item, write_manifest
from sembench.manifests.profiles import BANDS_TOKENS, DOMAIN_NAMES, build_fixture, build_synthetic

__all__ = [
    "BANDS_TOKENS",
    "BUILDER_VERSION",
    "DOMAIN_NAMES",
    "BuildOptions",
    "Built",
    "build_fixture",
    "build_synthetic",
    "format_item",
    "sha256",
    "write_manifest",
]
