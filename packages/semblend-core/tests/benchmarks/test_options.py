"""Options of benchmarks that cannot work are refused by their names, before anything runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from semblend_core.testing.benchmarks import (
    checked,
    conversation,
    endurance,
    fidelity,
    hostile,
    kept,
    never_slower,
    options_of,
    production,
    proving,
    throughput,
)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--context", type=checked.positive, default=32_768)
    parser.add_argument("--json", type=checked.file_to_write)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)

    def parse(benchmark: ModuleType, *given: str) -> argparse.Namespace:
        monkeypatch.setattr("sys.argv", ["benchmark", *given])
        return options_of("What it does.", add_engine_options, benchmark.add_options, why_not=benchmark.why_not)

    return parse


@pytest.mark.parametrize(
    "benchmark", [conversation, fidelity, hostile, never_slower, production, proving, throughput], ids=str
)
def test_what_is_set_by_default_works_and_needs_its_context(
    benchmark: ModuleType, parsed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    parsed(benchmark)
    with pytest.raises(SystemExit):
        parsed(benchmark, "--context", "500")
    assert "--context 500: prompts with their answers have up to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("benchmark", "given", "told"),
    [
        (never_slower, "--sizes 0:5", "--sizes: '0:5' is not TOKENS"),
        (never_slower, "--sizes 512:0", "--sizes: '512:0' is not TOKENS"),
        (never_slower, "--sizes 512x0", "--sizes: '512x0' is not TOKENS"),
        (never_slower, "--sizes=", "--sizes: '' is not TOKENS"),
        (never_slower, "--sizes 100", "--sizes: a prompt of 100 tokens is too short"),
        (never_slower, "--pairs -1", "--pairs: '-1' is no whole number above 0"),
        (never_slower, "--out none/there", "--out: none/there cannot be a folder"),
        (never_slower, "--sizes 32760", "--context 32768: prompts with their answers have up to 32764 tokens"),
        (never_slower, "--resume", "--resume needs the --out"),
        (production, "--runs 0", "--runs: '0' is no whole number above 0"),
        (production, "--seconds 0", "--seconds: '0' is no number above 0"),
        (production, "--seconds nan", "--seconds: 'nan' is no number above 0"),
        (production, "--in-flight 0", "--in-flight: '0' is no whole number above 0"),
        (production, "--output-tokens 9 3", "--output-tokens 9 3: the least comes first"),
        (production, "--longest 600", "--longest 600: --shortest 512 and an answer of 128 tokens do not fit"),
        (production, "--json none/there", "--json: none/there cannot be written"),
        (production, "--text none", "--text: there is no file or folder none"),
        (production, "--text .", "--text: no *.md lies in the folder ."),
        (throughput, "--shares 2", "--shares: '2' is no number from 0 to 1"),
        (throughput, "--tokens 100", "--tokens: a prompt of 100 tokens is too short"),
        (fidelity, "--size 600", "--size: a prompt of 600 tokens is too short"),
        (endurance, "--disk donors --rounds 1", "--rounds 1: they go from the middle to the end"),
        (endurance, "--disk donors --beside none", "--beside: there is no file none"),
    ],
)
def test_what_cannot_work_is_refused_by_its_name(
    benchmark: ModuleType, given: str, told: str, parsed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(benchmark, *given.split(" "))
    assert told in capsys.readouterr().err


def test_results_of_other_options_are_neither_gone_on_from_nor_mixed_with(
    parsed: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--sizes", "512:5", "--out", "results")
    options = parsed(never_slower, *given)
    kept.note_options(options)
    kept.keep(options, "512-reorder-4-1.json", json.dumps({"ratio": 1.0}))
    resumed = parsed(never_slower, *given, "--resume", "--json", "elsewhere")
    assert kept.earlier(resumed, ["512-reorder-4-1.json"]) == ['{"ratio": 1.0}\n']
    assert kept.earlier(resumed, ["512-reorder-4-1.json", "not-measured.json"]) == []
    for more in (["--resume"], []):
        with pytest.raises(SystemExit):
            parsed(never_slower, *given, "--answer", "9", *more)
        assert "--out results: its results were made with --answer 4; give" in capsys.readouterr().err
    (tmp_path / "results" / kept.MADE_WITH).unlink()
    with pytest.raises(SystemExit):
        parsed(never_slower, *given, "--resume")
    assert "does not say what its results were made with" in capsys.readouterr().err
