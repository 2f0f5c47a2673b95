"""``sembench run-offline`` as its users call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sembench.cli import main
from sembench.schema import ManifestItem
from sembench.schema import Result as ResultFile

Write = Callable[..., Path]


@pytest.fixture
def manifest(tmp_path: Path, make_item: Callable[..., ManifestItem]) -> Path:
    words = [f"Word{number}" for number in range(600)]
    document = " ".join(words)
    items = [
        make_item("moved", [document], "Answer briefly. " + document, "instruction_variant"),
        make_item("control", [" ".join(reversed(words))], " ".join(f"x{word}" for word in words), "negative_control"),
    ]
    path = tmp_path / "manifest.jsonl"
    path.write_text("".join(item.model_dump_json() + "\n" for item in items))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["run-offline", *map(str, arguments)])


def test_it_writes_a_result_and_prints_counts_with_their_denominators(manifest: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "folder" / "result.json"
    done = run("--manifest", manifest, "--output", output, "--block-size", 16)
    assert done.exit_code == 0, done.output
    result = ResultFile.model_validate_json(output.read_text())
    assert result.run.kind == "offline"
    assert result.run.finished_at is not None
    assert result.run.manifest_sha256 is not None
    assert result.config["tokenizer"] == "words-v1"
    assert result.config["provider"]["name"] == "core"
    assert result.aggregate.backend_confirmed_block_rate is None
    eligible = result.by_transform["instruction_variant"].aggregate.semantic_eligible_block_rate
    assert eligible is not None
    assert f"{eligible.numerator:.0f}  {100 * (eligible.value or 0):.1f}%" in done.output
    assert "negative controls: eligible 0.0% (0 / " in done.output
    assert "not what was" in done.output


def test_the_same_manifest_gives_the_same_figures(manifest: Path, tmp_path: Path) -> None:
    figures = []
    for name in ("one.json", "two.json"):
        assert run("-m", manifest, "-o", tmp_path / name).exit_code == 0
        result = json.loads((tmp_path / name).read_text())
        for part in [
            *result["requests"],
            result["aggregate"],
            *(t["aggregate"] for t in result["by_transform"].values()),
        ]:
            part.pop("lookup_us")
        figures.append({key: result[key] for key in ("config", "aggregate", "by_transform", "requests")})
    assert figures[0] == figures[1]


def test_max_items_takes_the_first(manifest: Path, tmp_path: Path) -> None:
    assert run("-m", manifest, "-o", tmp_path / "r.json", "--max-items", 1).exit_code == 0
    result = ResultFile.model_validate_json((tmp_path / "r.json").read_text())
    assert result.aggregate.items == 1
    assert list(result.by_transform) == ["instruction_variant"]
    assert result.aggregate.negative_control_semantic_eligible_rate is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda lines: [lines[0], "{torn"], "manifest.jsonl:2: not JSON"),
        (lambda lines: [lines[0], lines[1][:50]], "the file ends in the middle of a line"),
        (lambda lines: [_edited(lines[0], recipient_prompt=7)], "manifest.jsonl:1: recipient_prompt: "),
        (
            lambda lines: [_edited(lines[0], benchmark_version="v0")],
            "benchmark_version: expected 'sembench.manifest.v1'",
        ),
        (lambda lines: [lines[0], lines[0]], "is there twice"),
        (lambda lines: [], "holds no items"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused_with_the_place(
    manifest: Path, tmp_path: Path, change: Callable[[list[str]], list[str]], complaint: str
) -> None:
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(change(lines)))
    done = run("-m", manifest, "-o", tmp_path / "r.json")
    assert done.exit_code == 2
    assert complaint in done.output
    assert not (tmp_path / "r.json").exists()


def _edited(line: str, **changes: Any) -> str:
    return json.dumps({**json.loads(line), **changes}) + "\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--block-size", "0"], "--block-size"),
        (["--min-similarity", "1.5"], "--min-similarity"),
        (["--provider", "nobody"], "--provider nobody: is none of"),
        (["--tokenizer", "./absent"], "--tokenizer ./absent"),
        (["--provider", "peer", "--peer-python", "/no/python"], "semblend==0.3.25"),
        (["--peer-env", "BROKEN"], "--peer-env"),
    ],
)
def test_wrong_usage_names_the_option(manifest: Path, tmp_path: Path, arguments: list[str], complaint: str) -> None:
    done = run("-m", manifest, "-o", tmp_path / "r.json", *arguments)
    assert done.exit_code == 2
    assert complaint in done.output
    assert "Traceback" not in done.output


def test_a_run_in_which_every_item_failed_is_written_and_refused(manifest: Path, tmp_path: Path) -> None:
    (tmp_path / "always_fails.py").write_text(
        "from semblend_core.testing import ReferenceProvider\n"
        "class Provider(ReferenceProvider):\n"
        "    def lookup(self, request):\n"
        "        raise RuntimeError('out of order')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        done = run("-m", manifest, "-o", tmp_path / "r.json", "--provider", "always_fails:Provider")
    assert done.exit_code == 1
    assert "every item failed, the first with: provider raised RuntimeError: out of order" in done.output
    result = ResultFile.model_validate_json((tmp_path / "r.json").read_text())
    assert result.aggregate.requests_failed == 2
    assert result.aggregate.semantic_eligible_block_rate is None
    assert result.aggregate.exact_block_hit_rate is not None


def test_an_output_that_cannot_be_written_is_named(manifest: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("-m", manifest, "-o", tmp_path / "file" / "r.json")
    assert done.exit_code == 2
    assert "--output" in done.output


def test_help_explains_every_option() -> None:
    shown = run("--help").output
    for word in ("--tokenizer", "--provider", "--fuzzy", "--shared-pool", "module:attr", "Examples", "words-v1"):
        assert word in shown
