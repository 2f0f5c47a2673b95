"""Cold against cold."""

import itertools

import pytest

from sembench.live.noise_floor import ColdServing, NoiseFloor, build_noise_floor
from sembench.schema import Quality, RunIdentity, read_json


@pytest.fixture
def calibrate(sembench, stub, write_manifest, tmp_path):
    def run(*words, items=3):
        common = ("--manifest", write_manifest(items), "--output", tmp_path / "floor.json", "--model", "tiny")
        return sembench("calibrate-noise-floor", *common, "--gateway-url", stub.url, *words)

    return run


@pytest.fixture
def read_floor(tmp_path):
    return lambda: read_json(tmp_path / "floor.json", NoiseFloor)


def test_a_deterministic_server_has_no_noise_in_its_answers(calibrate, read_floor, stub):
    assert calibrate().exit_code == 0
    assert stub.ids() == ["cold"] * 6, "no donors: nothing but the same prompt, cold"
    floor = read_floor()
    assert floor.run.kind == "noise-floor"
    assert floor.run.manifest_sha256
    assert (floor.items, floor.repeats, len(floor.pairs)) == (3, 2, 3)
    assert (floor.rouge_l.mean, floor.rouge_l.p5) == (1.0, 1.0)
    assert (floor.exact_match.numerator, floor.exact_match.denominator) == (3, 3)
    assert floor.ttft_ratio.n == 3
    assert floor.ttft_ratio.p5 <= floor.ttft_ratio.p50 <= floor.ttft_ratio.p95
    assert floor.answer_score_difference.mean == 0.0


def test_answers_that_vary_make_a_floor(calibrate, read_floor, stub):
    words = itertools.cycle(["one two three four", "one two three five"])
    stub.answer = lambda seen: next(words)
    # The preflight asks five times before the first item.
    assert calibrate("--repeats", 3, items=1).exit_code == 0
    floor = read_floor()
    assert [pair.exact_match for pair in floor.pairs].count(True) == 1, "of three servings, two are alike"
    assert sorted(pair.rouge_l for pair in floor.pairs) == [0.75, 0.75, 1.0]
    assert floor.exact_match.value == pytest.approx(1 / 3)


def test_servings_that_were_not_cold_do_not_count(calibrate, read_floor, stub):
    stub.fault = lambda seen, number: setattr(stub, "always_cached", 16 if number == 1 else 0)
    assert calibrate(items=2).exit_code == 0
    floor = read_floor()
    assert floor.dropped == {"cold was warm": 1}
    assert [pair.item_id for pair in floor.pairs] == [f"{1:016x}"]


def test_without_any_cold_pair_there_is_no_floor_and_the_exit_code_is_1(calibrate, read_floor, stub):
    stub.cached = "absent"
    done = calibrate()
    assert done.exit_code == 1
    assert "no pair of servings is proved cold" in done.output
    floor = read_floor()
    assert floor.rouge_l.mean is None
    assert floor.exact_match.value is None
    assert floor.dropped == {"coldness not provable": 6}


def test_one_server_must_be_named(sembench, calibrate, stub, write_manifest, tmp_path):
    assert calibrate("--base-url", stub.url).exit_code == 2
    words = ("--manifest", write_manifest(), "--output", tmp_path / "floor.json", "--model", "tiny")
    assert sembench("calibrate-noise-floor", *words).exit_code == 2


def test_a_dead_server_ends_with_3(sembench, write_manifest, tmp_path):
    words = ("--manifest", write_manifest(), "--output", tmp_path / "floor.json", "--model", "tiny")
    assert sembench("calibrate-noise-floor", *words, "--base-url", "http://127.0.0.1:9").exit_code == 3


@pytest.fixture
def run_identity():
    return RunIdentity(
        kind="noise-floor",
        started_at="2026-01-01T00:00:00+00:00",
        finished_at=None,
        manifest=None,
        manifest_sha256=None,
        manifest_items=1,
        command=[],
        versions={},
        host={},
    )


def test_figures_that_were_not_measured_stay_out_of_the_spread(run_identity):
    servings = {
        "a": [ColdServing("x", 10.0, Quality(f1=0.5, rouge_l=0.25)), ColdServing("x", 20.0, Quality(f1=0.25))],
        "b": [ColdServing("", None, Quality()), ColdServing("y", 5.0, Quality())],
    }
    floor = build_noise_floor(run_identity, {}, servings, 2)
    assert (floor.ttft_ratio.n, floor.ttft_ratio.p50) == (1, 0.5)
    assert (floor.answer_score_difference.n, floor.answer_score_difference.mean) == (1, 0.25)
    assert [(pair.rouge_l, pair.exact_match) for pair in floor.pairs] == [(1.0, True), (0.0, False)]
