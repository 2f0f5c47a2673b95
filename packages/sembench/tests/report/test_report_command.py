from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner
from click.testing import Result as Outcome

from sembench.cli import main
from sembench.cli.results import _names
from sembench.schema import EngineSummary, Result


def invoke(*words: object) -> Outcome:
    return CliRunner().invoke(main, ["report", *map(str, words)])


def write(path: Path, result: Result) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result.model_dump_json(indent=1))
    return path


def test_a_result_file_becomes_a_page_that_fetches_and_runs_nothing(
    tmp_path: Path, replay: Callable[..., Result]
) -> None:
    output = tmp_path / "new" / "folder" / "report.html"
    done = invoke(write(tmp_path / "r.json", replay()), "--output", output)
    assert done.exit_code == 0, done.output
    assert str(output) in done.output
    page = output.read_text()
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert "<script" not in page
    assert "<link" not in page


def test_several_results_and_engine_summaries(tmp_path: Path, replay: Callable[..., Result]) -> None:
    files = [write(tmp_path / name, replay()) for name in ("a.json", "b.json")]
    summary = tmp_path / "s.json"
    summary.write_text(EngineSummary(engine="sglang", inputs=[], lines=1, unparsed_lines=0).model_dump_json())
    output = tmp_path / "r.html"
    done = invoke(*files, "--compare", "-o", output, "--engine-summary", summary, summary)
    assert done.exit_code == 0, done.output
    page = output.read_text()
    assert 'id="comparison"' in page
    assert 'id="r2-summary"' in page
    assert page.count(">sglang</th>") == 2


def test_one_result_cannot_be_compared(tmp_path: Path, replay: Callable[..., Result]) -> None:
    done = invoke(write(tmp_path / "r.json", replay()), "--compare", "-o", tmp_path / "r.html")
    assert done.exit_code == 2
    assert "--compare needs two or more" in done.output
    assert not (tmp_path / "r.html").exists()


def test_what_is_wrong_with_a_file_is_said_with_its_name_and_field(
    tmp_path: Path, replay: Callable[..., Result]
) -> None:
    broken = tmp_path / "broken.json"
    for content, said in (
        ("{", "not JSON"),
        ('{"schema_version": "sembench.result.v9"}', "schema_version: expected 'sembench.result.v1'"),
        (json.dumps(json.loads(replay().model_dump_json()) | {"config": 3}), "config"),
    ):
        broken.write_text(content)
        done = invoke(broken, "-o", tmp_path / "r.html")
        assert done.exit_code == 2
        assert f"{broken}: {said}" in done.output
        assert "Traceback" not in done.output


def test_a_page_that_cannot_be_written_is_refused_with_the_reason(
    tmp_path: Path, replay: Callable[..., Result]
) -> None:
    (tmp_path / "file").write_text("")
    done = invoke(write(tmp_path / "r.json", replay()), "-o", tmp_path / "file" / "r.html")
    assert done.exit_code == 2
    assert "--output" in done.output
    assert "Traceback" not in done.output


def test_results_are_named_by_what_tells_their_paths_apart() -> None:
    assert _names((Path("a/cold.json"), Path("b/warm.json"))) == ["cold", "warm"]
    assert _names((Path("x/a/r.json"), Path("x/b/r.json"))) == ["a/r", "b/r"]
    assert len(set(_names((Path("r.json"), Path("r.json"))))) == 2
