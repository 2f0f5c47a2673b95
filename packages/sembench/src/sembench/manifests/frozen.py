"""Frozen manifests: a small file that says what a manifest was, so that a later reader can tell whether it still is."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from sembench.__about__ import __version__
from sembench.identity import load_manifest, sha256_of
from sembench.manifests.items import format_item
from sembench.schema import ManifestItem

_NAMED = 5
"""Items named in a difference; the others are counted."""


class FrozenSpec(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_version: Literal["sembench.frozen.v1"] = "sembench.frozen.v1"
    manifest: str
    """File name, for the reader; not compared."""
    sha256: str
    items: int
    negative_controls: int
    by_dataset: dict[str, int]
    by_transform: dict[str, int]
    builder: list[dict[str, Any]]
    """Version, profile, seed and options as the items record them; more than one where manifests were joined."""
    sembench_version: str
    """That froze it; not compared."""
    item_digests: dict[str, str]
    """Item id to the first 16 hex digits of its line's sha256."""


def freeze(path: Path) -> FrozenSpec:
    items = load_manifest(path)
    return FrozenSpec(
        manifest=path.name,
        sha256=sha256_of(path),
        items=len(items),
        negative_controls=sum(item.negative_control for item in items),
        by_dataset=_counted(item.dataset for item in items),
        by_transform=_counted(item.transform for item in items),
        builder=_builders(items),
        sembench_version=__version__,
        item_digests={item.item_id: _digest(item) for item in items},
    )


def find_differences(frozen: FrozenSpec, found: FrozenSpec) -> list[str]:
    """Each field that differs, in words; empty where the manifest is what was frozen."""
    lines = [
        f"{name}: frozen {getattr(frozen, name)!r}, found {getattr(found, name)!r}"
        for name in ("sha256", "items", "negative_controls")
        if getattr(frozen, name) != getattr(found, name)
    ]
    lines += _builder_differences(frozen.builder, found.builder)
    for name in ("by_dataset", "by_transform"):
        lines += _count_differences(name, getattr(frozen, name), getattr(found, name))
    return lines + list(_item_differences(frozen.item_digests, found.item_digests))


def _builder_differences(frozen: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[str]:
    """Option by option where both come from one build; else whole."""
    if frozen == found:
        return []
    if len(frozen) != 1 or len(found) != 1:
        return [f"builder: frozen {frozen!r}, found {found!r}"]
    before, now = _flat(frozen[0]), _flat(found[0])
    return [
        f"builder.{name}: frozen {before.get(name)!r}, found {now.get(name)!r}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def _flat(builder: dict[str, Any]) -> dict[str, Any]:
    options = builder.get("options", {})
    rest = {name: value for name, value in builder.items() if name != "options"}
    return {**rest, **{f"options.{name}": value for name, value in options.items()}}


def _count_differences(field: str, frozen: dict[str, int], found: dict[str, int]) -> list[str]:
    return [
        f"{field}.{name}: frozen {frozen.get(name, 0)}, found {found.get(name, 0)}"
        for name in sorted({*frozen, *found})
        if frozen.get(name, 0) != found.get(name, 0)
    ]


def _item_differences(frozen: dict[str, str], found: dict[str, str]) -> Iterator[str]:
    kinds = {
        "missing": [item for item in frozen if item not in found],
        "added": [item for item in found if item not in frozen],
        "changed": [item for item in frozen if item in found and frozen[item] != found[item]],
    }
    for kind, ids in kinds.items():
        if ids:
            more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
            yield f"items {kind}: {', '.join(ids[:_NAMED])}{more}"
    if not any(kinds.values()) and list(frozen) != list(found):
        yield "items: the same ones in another order"


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _builders(items: list[ManifestItem]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for item in items:
        builder = item.metadata.get("builder")
        if isinstance(builder, dict) and builder not in found:
            found.append(builder)
    return found


def _digest(item: ManifestItem) -> str:
    return hashlib.sha256(format_item(item).encode("utf-8", "surrogatepass")).hexdigest()[:16]
