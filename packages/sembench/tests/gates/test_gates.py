"""assert-result-gates: a figure decides, a missing one fails, and what decides is printed with its parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Ended

from sembench.identity import identify
from sembench.live.noise_floor import ColdServing, build_noise_floor
from sembench.schema import EngineSummary, NoiseFloor, Quality, Result
from sembench.schema.engine import EngineRequest

Run = Callable[..., Ended]

PASSING = (
    *("--min-quality-pass-rate", "0.8", "--min-semantic-placement-rate", "0.8"),
    *("--min-backend-confirmed-block-rate", "0.5", "--min-materialization-events", "4"),
    *("--min-materialized-tokens", "512", "--min-blended-ttft-speedup", "1.9"),
    *("--max-negative-control-confirmed-rate", "0", "--max-negative-control-speedup-deviation", "0.05"),
    "--require-materialized-reuse",
)


ROUTED = {"route": {"x-semblend-routing-path": "semantic"}}


def summary(**fields: Any) -> EngineSummary:
    known = {"engine": "vllm", "inputs": ["vllm.log"], "lines": 100, "unparsed_lines": 0}
    return EngineSummary.model_validate({**known, **fields})


def floor(bench: Any, text: str = "the same words", **config: Any) -> NoiseFloor:
    """Two cold servings of each item: the first is always the same, the second is ``text``."""
    servings = {
        each.item_id: [ColdServing("the same words", 100.0, Quality()), ColdServing(text, 100.0, Quality())]
        for each in bench.items
    }
    run = identify("noise-floor", bench.manifest, len(bench.items), engine={"name": "vllm", "version": "0.32.0"})
    return build_noise_floor(run, {"model": "m", "max_output_tokens": 64, "concurrency": 1, **config}, servings, 2)


def test_a_good_result_passes_every_gate_and_shows_what_each_is_made_of(bench: Any, sembench: Run) -> None:
    path = bench.save(bench.result("cold", "warm", warm=ROUTED))
    ended = sembench("assert-result-gates", "--result", path, *PASSING)
    assert ended.exit_code == 0, ended.output
    assert ended.stdout.count("1.0000 (5 of 5)") == 2
    assert "0.6400 (32 of 50)" in ended.stdout
    assert "2.000 (n=4, 95% 2.000 to 2.000)" in ended.stdout
    assert ended.stdout.count("pass") == 9 + 1  # one of them in a gate's name
    assert "FAIL" not in ended.output


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        (("--min-quality-pass-rate", "1.0"), "0.0000 (0 of 5)"),
        (("--min-semantic-placement-rate", "0.9"), "0.0000 (0 of 5)"),
        (("--min-backend-confirmed-block-rate", "0.9"), "0.6400 (32 of 50)"),
        (("--min-materialization-events", "5"), "found 4"),
        (("--min-materialized-tokens", "513"), "found 512"),
        (("--min-blended-ttft-speedup", "2.1"), "2.000 (n=4"),
        (("--max-negative-control-speedup-deviation", "0.01"), "0.020 (speedup 0.980 (n=1))"),
    ],
)
def test_each_gate_fails_on_its_own_figure(gate: tuple[str, ...], told: str, bench: Any, sembench: Run) -> None:
    failed = {"quality": {"passed": False}} if "quality" in gate[0] else {}
    failed |= {"route": {"x-route": "round_robin"}}
    path = bench.save(bench.result("cold", "warm", warm=failed))
    ended = sembench("assert-result-gates", "--result", path, *gate)
    assert ended.exit_code == 1
    assert told in ended.stderr
    assert f"{gate[0]}: FAIL" in ended.stderr


UNMEASURED = {"confirmed_tokens": None, "advertised_tokens": None, "quality": {}}


@pytest.mark.parametrize(
    "gate",
    [
        ("--min-quality-pass-rate", "0"),
        ("--min-semantic-placement-rate", "0"),
        ("--min-backend-confirmed-block-rate", "0"),
        ("--min-materialization-events", "0"),
        ("--min-materialized-tokens", "0"),
        ("--min-blended-ttft-speedup", "0"),
        ("--max-negative-control-confirmed-rate", "1"),
        ("--max-negative-control-speedup-deviation", "9"),
        ("--require-materialized-reuse",),
        ("--require-no-engine-errors",),
    ],
)
def test_a_missing_figure_fails_its_gate_even_where_any_figure_would_pass(
    gate: tuple[str, ...], bench: Any, sembench: Run
) -> None:
    path = bench.save(bench.result("warm", warm=UNMEASURED))
    ended = sembench("assert-result-gates", "--result", path, *gate)
    assert ended.exit_code == 1
    assert f"{gate[0]}: FAIL" in ended.stderr
    allowed = sembench("assert-result-gates", "--result", path, *gate, "--allow-missing")
    assert allowed.exit_code == 0
    assert f"{gate[0]}: not judged" in allowed.stderr


def test_a_control_that_was_not_measured_cannot_vouch_for_itself(bench: Any, sembench: Run) -> None:
    """One control reused, one was not measured: even then what is known decides where it already breaks the gate."""
    bench.items.append(bench.items[-1].model_copy(update={"item_id": f"{99:016x}"}))
    bench.manifest = bench.write_manifest("manifest.jsonl")
    result = bench.result("cold", "warm")
    records = [
        record.model_copy(update={"confirmed_tokens": 64, "confirmed_blocks": 4})
        if record.arm == "warm" and record.item_id == f"{4:016x}"
        else record.model_copy(update={"confirmed_tokens": None, "confirmed_blocks": None})
        if record.arm == "warm" and record.negative_control
        else record
        for record in result.requests
    ]
    from sembench.results import build_result

    path = bench.save(build_result(result.run, result.config, bench.items, records))
    gate = ("assert-result-gates", "--result", path, "--max-negative-control-confirmed-rate")
    ended = sembench(*gate, "0", "--allow-missing")
    assert ended.exit_code == 1
    assert "at least 4 of 20" in ended.stderr
    assert sembench(*gate, "0.5").exit_code == 1, "missing, and not allowed to be"
    assert sembench(*gate, "0.5", "--allow-missing").exit_code == 0


def test_events_tokens_and_errors_come_from_the_summaries_where_the_result_has_none(
    bench: Any, sembench: Run, tmp_path: Path
) -> None:
    path = bench.save(bench.result("cold", "warm", cold=UNMEASURED, warm=UNMEASURED))
    paths = []
    for number in range(2):
        told = summary(
            inputs=[f"{number}.log"],
            materialization_events=1,
            materialized_tokens=100,
            errors=number,
            error_samples=["boom"] * number,
            first_time=time.time(),
            last_time=time.time(),
        )
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(told.model_dump_json())
    gates = ("--min-materialization-events", "3", "--min-materialized-tokens", "200", "--require-no-engine-errors")
    ended = sembench("assert-result-gates", "--result", path, "--engine-summary", *paths, *gates)
    assert ended.exit_code == 1
    assert "--min-materialization-events: FAIL: wanted >= 3, found 2" in ended.stderr
    assert "--min-materialized-tokens: FAIL" not in ended.stderr
    assert "1 errors: boom" in ended.stderr


def test_a_summary_that_knows_of_no_landing_refutes_the_result(bench: Any, sembench: Run, tmp_path: Path) -> None:
    path, told = bench.save(bench.result("cold", "warm")), tmp_path / "s.json"
    told.write_text(summary(materialization_events=0, materialized_tokens=0).model_dump_json())
    gate = ("assert-result-gates", "--result", path, "--require-materialized-reuse")
    assert sembench(*gate).exit_code == 0
    ended = sembench(*gate, "--engine-summary", told)
    assert ended.exit_code == 1
    assert "the result states 512 materialized tokens, the summaries only 0" in ended.stderr


def test_an_exact_baseline_proves_no_semantic_reuse(bench: Any, sembench: Run, tmp_path: Path) -> None:
    path, told = bench.save(bench.result("warm", warm=UNMEASURED)), tmp_path / "s.json"
    told.write_text(summary(engine="lmcache", exact_retrieved_tokens=5000).model_dump_json())
    ended = sembench("assert-result-gates", "--result", path, "--engine-summary", told, "--require-materialized-reuse")
    assert ended.exit_code == 1
    assert "no backend event tells of reuse" in ended.stderr


def test_requests_that_differ_between_summary_and_result_are_named(bench: Any, sembench: Run, tmp_path: Path) -> None:
    result = bench.result("cold", "warm")
    name = f"sb-{bench.items[0].item_id}-warm"
    told = summary(
        materialization_events=4,
        materialized_tokens=512,
        requests={f"cmpl-{name}-0": EngineRequest(confirmed_tokens=16)},
    )
    path = tmp_path / "s.json"
    path.write_text(told.model_dump_json())
    ended = sembench(
        *("assert-result-gates", "--result", bench.save(result), "--engine-summary", path),
        "--require-materialized-reuse",
    )
    assert ended.exit_code == 1
    assert "sources agree: FAIL" in ended.stderr
    assert f"tell different confirmed tokens for 1 requests: {name}: 128 and 16" in ended.stderr


def test_an_empty_log_is_no_proof_of_the_absence_of_errors(bench: Any, sembench: Run, tmp_path: Path) -> None:
    path, told = bench.save(bench.result("cold", "warm")), tmp_path / "s.json"
    told.write_text(summary(lines=0).model_dump_json())
    ended = sembench("assert-result-gates", "--result", path, "--engine-summary", told, "--require-no-engine-errors")
    assert ended.exit_code == 1
    told.write_text(summary(lines=3).model_dump_json())
    ended = sembench("assert-result-gates", "--result", path, "--engine-summary", told, "--require-no-engine-errors")
    assert ended.exit_code == 0, ended.output


def rouge_gate(bench: Any, sembench: Run, result: Result, calibration: NoiseFloor, drop: str) -> Ended:
    path = bench.folder / "floor.json"
    path.write_text(calibration.model_dump_json())
    return sembench(
        *("assert-result-gates", "--result", bench.save(result), "--noise-floor-calibration", path),
        *("--max-warm-vs-cold-rouge-drop", drop),
    )


def test_a_drop_within_the_noise_floor_passes_and_a_larger_one_does_not(bench: Any, sembench: Run) -> None:
    noisy = floor(bench, text="the same letters")
    assert noisy.rouge_l.mean == pytest.approx(0.5)
    same = bench.result("cold", "warm")
    other = bench.result("cold", "warm", warm={"output": "something else entirely"})
    assert rouge_gate(bench, sembench, same, noisy, "0").exit_code == 0
    ended = rouge_gate(bench, sembench, other, noisy, "0.4")
    assert ended.exit_code == 1
    assert "0.5000 (warm-cold 0.0000, n=4; cold-cold 0.5000, n=5)" in ended.stderr
    assert rouge_gate(bench, sembench, other, noisy, "0.6").exit_code == 0


def test_a_noise_floor_of_another_protocol_is_none(bench: Any, sembench: Run) -> None:
    result = bench.result("cold", "warm")
    ended = rouge_gate(bench, sembench, result, floor(bench, max_output_tokens=8), "1")
    assert ended.exit_code == 1
    assert "max_output_tokens is 64 in the result and 8 in the noise floor" in ended.stderr
    bench.manifest = bench.write_manifest("other.jsonl", suffix="\n")
    assert "manifest_sha256" in rouge_gate(bench, sembench, result, floor(bench), "1").stderr


def test_wrong_usage_ends_with_2(bench: Any, sembench: Run) -> None:
    path = bench.save(bench.result("cold", "warm"))
    for arguments, told in (
        ((), "no gate is named"),
        (("--allow-missing",), "no gate is named"),
        (("--min-quality-pass-rate", "80"), "0<=x<=1"),
        (("--min-quality-pass-rate", "nan"), "no finite number"),
        (("--min-blended-ttft-speedup", "inf"), "no finite number"),
        (("--max-warm-vs-cold-rouge-drop", "0.1"), "needs --noise-floor-calibration"),
        (("--min-judge-faithfulness", "4"), "never the only quality gate"),
    ):
        ended = sembench("assert-result-gates", "--result", path, *arguments)
        assert (ended.exit_code, told in ended.stderr) == (2, True), ended.stderr


def test_files_that_are_not_what_they_should_be_end_with_2(bench: Any, sembench: Run, tmp_path: Path) -> None:
    text = bench.save(bench.result("cold", "warm")).read_text()
    bad = tmp_path / "bad.json"
    for content, told in (
        (text[: len(text) // 2], "not JSON"),
        (
            text.replace("sembench.result.v1", "sembench.result.v2"),
            "expected 'sembench.result.v1', found 'sembench.result.v2'",
        ),
        ("[]", "expected a JSON object"),
        (text.replace('"items":5', '"items":"many"'), "aggregate.items"),
    ):
        bad.write_text(content)
        ended = sembench("assert-result-gates", "--result", bad, "--require-materialized-reuse")
        assert (ended.exit_code, told in ended.stderr) == (2, True), ended.stderr
        assert "Traceback" not in ended.output
    ended = sembench("assert-result-gates", "--result", tmp_path / "none.json", "--require-materialized-reuse")
    assert ended.exit_code == 2


def test_the_judge_is_heard_only_beside_another_quality_gate(bench: Any, sembench: Run) -> None:
    result = bench.result("cold", "warm")
    gates = ("--min-quality-pass-rate", "0.8", "--min-judge-faithfulness", "4")
    ended = sembench("assert-result-gates", "--result", bench.save(result), *gates)
    assert ended.exit_code == 1
    assert "no judge was asked" in ended.stderr
    result.aggregate.judge = {"faithfulness_warm": {"mean": 4.5, "n": 5}}
    assert sembench("assert-result-gates", "--result", bench.save(result), *gates).exit_code == 0


def test_answers_without_a_score_do_not_help_the_judges_mean(bench: Any, sembench: Run) -> None:
    """One good score and a judge that then fell silent would pass otherwise."""
    result = bench.result("cold", "warm")
    gates = ("--min-quality-pass-rate", "0.8", "--min-judge-faithfulness", "4")
    result.aggregate.judge = {"faithfulness_warm": {"mean": 5.0, "n": 1}, "answers_warm": 5}
    ended = sembench("assert-result-gates", "--result", bench.save(result), *gates)
    assert ended.exit_code == 1
    assert "at least 1.800 (1 of 5 answers have a score" in ended.stderr
