"""A frozen record tells whether a manifest is still what it was, and what is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from sembench.identity import sha256_of
from sembench.manifests import build_synthetic, write_manifest
from sembench.schema import ManifestItem

Command = Callable[..., Result]


@pytest.fixture
def frozen(sembench: Command, tmp_path: Path, fixture_items: list[ManifestItem]) -> tuple[Path, Path]:
    manifest, spec = tmp_path / "m.jsonl", tmp_path / "specs" / "m.json"
    write_manifest(manifest, fixture_items)
    assert sembench("freeze", "--manifest", manifest, "--spec", spec).exit_code == 0
    return manifest, spec


def test_it_records_what_the_items_say_of_their_builder(frozen: tuple[Path, Path]) -> None:
    record = json.loads(frozen[1].read_text(encoding="utf-8"))
    assert record["sha256"] == sha256_of(frozen[0])
    assert record["items"] == 14
    assert record["by_transform"]["multi_turn"] == 2
    assert sum(record["by_dataset"].values()) == 14
    (builder,) = record["builder"]
    assert (builder["profile"], builder["seed"], builder["version"]) == ("fixture", 7, "1")
    assert builder["options"]["max_segments"] == 4


def test_an_untouched_manifest_passes(sembench: Command, frozen: tuple[Path, Path]) -> None:
    result = sembench("verify-frozen", "--manifest", frozen[0], "--spec", frozen[1])
    assert result.exit_code == 0, result.output
    assert "as frozen, 14 items" in result.stdout


def _refused(sembench: Command, manifest: Path, spec: Path) -> str:
    result = sembench("verify-frozen", "--manifest", manifest, "--spec", spec)
    assert result.exit_code == 1
    return result.stderr


def test_a_changed_item_is_named(
    sembench: Command, frozen: tuple[Path, Path], fixture_items: list[ManifestItem]
) -> None:
    changed = fixture_items[3].model_copy(update={"answers": ("something else",)})
    write_manifest(frozen[0], [*fixture_items[:3], changed, *fixture_items[4:]])
    said = _refused(sembench, *frozen)
    assert f"items changed: {changed.item_id}" in said
    assert "sha256: frozen" in said
    assert "by_transform" not in said


def test_a_missing_item_is_named_and_counted(
    sembench: Command, frozen: tuple[Path, Path], fixture_items: list[ManifestItem]
) -> None:
    write_manifest(frozen[0], fixture_items[1:])
    said = _refused(sembench, *frozen)
    assert f"items missing: {fixture_items[0].item_id}" in said
    assert "items: frozen 14, found 13" in said
    assert "by_transform.exact_repeat: frozen 1, found 0" in said


def test_another_order_is_a_difference(
    sembench: Command, frozen: tuple[Path, Path], fixture_items: list[ManifestItem]
) -> None:
    write_manifest(frozen[0], fixture_items[::-1])
    assert "the same ones in another order" in _refused(sembench, *frozen)


def test_another_seed_is_said_by_its_name(sembench: Command, tmp_path: Path) -> None:
    manifest, spec = tmp_path / "m.jsonl", tmp_path / "m.json"
    write_manifest(manifest, build_synthetic(seed=1, bands_tokens=(500,), transforms=("exact_repeat",)))
    sembench("freeze", "--manifest", manifest, "--spec", spec)
    write_manifest(manifest, build_synthetic(seed=2, bands_tokens=(500,), transforms=("exact_repeat",)))
    assert "builder.seed: frozen 1, found 2" in _refused(sembench, manifest, spec)


def test_a_record_of_another_kind_is_refused_as_input(sembench: Command, frozen: tuple[Path, Path]) -> None:
    record = json.loads(frozen[1].read_text(encoding="utf-8"))
    frozen[1].write_text(json.dumps({**record, "schema_version": "sembench.frozen.v9"}), encoding="utf-8")
    result = sembench("verify-frozen", "--manifest", frozen[0], "--spec", frozen[1])
    assert result.exit_code == 2
    assert "schema_version: expected 'sembench.frozen.v1', found 'sembench.frozen.v9'" in result.stderr
