"""Benchmarks of a stock engine and one with SemBlend, both alive: what they serve, and how they are judged."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from stubs_for_arms import Echo, EchoEngine, StreamingStub

from semblend_core.testing.benchmarks import ARMS, Arms, Prompts, production, throughput
from semblend_core.testing.benchmarks.streaming import FIGURES, Clients, Timing, by_kind, failed


def options_for(add_options: Any, folder: Path, *given: str) -> argparse.Namespace:
    (folder / "config.json").write_text(json.dumps({"vocab_size": 50_000}))
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.set_defaults(seed=3, model=folder, text=[], stock=False, kv_tokens=None)
    return parser.parse_args(given)


# --- Arms ------------------------------------------------------------------------------------------------------------


def arm_options(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"stock": False, "kv_tokens": None, "short_of_memory": False, **given})


def test_arms_live_side_by_side_in_processes_of_their_own(tmp_path: Path) -> None:
    with Arms(EchoEngine, Echo, arm_options()) as arms:
        assert arms.engine == "echo"
        first, second = dict(arms.by_turns(0)), dict(arms.by_turns(1))
        assert [arm for arm, _ in arms.by_turns(0)] == list(ARMS)
        assert [arm for arm, _ in arms.by_turns(1)] == list(ARMS[::-1])
    assert [first[arm][:3] for arm in ARMS] == [(True, 77, 0), (False, 77, 0)], "both have as much room"
    assert first["stock"][3] == second["stock"][3] != first["semblend"][3], "they are started once"


@pytest.mark.parametrize(("asked", "told"), [("raise", "the stub's own words"), ("exit", "its process ended")])
def test_an_arm_that_fails_ends_the_benchmark_with_a_reason(asked: str, told: str) -> None:
    arms = Arms(EchoEngine, Echo, arm_options())
    with pytest.raises(SystemExit, match=f"(?s)the arm semblend failed.*{told}"), arms:
        arms.run("semblend", asked)
    assert not any(process.is_alive() for process in arms._processes)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"stock": True}, "--stock.*leave it out"),
        ({"short_of_memory": True}, "room for 77 and 60 tokens of KV: name --kv-tokens"),
        ({"short_of_memory": True, "kv_tokens": 70}, "room for 70 and 60"),
    ],
)
def test_arms_that_could_not_be_compared_are_not_started(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SystemExit, match=told):
        Arms(EchoEngine, Echo, arm_options(**given))


# --- Production ------------------------------------------------------------------------------------------------------


def production_options(folder: Path, *given: str) -> argparse.Namespace:
    return options_for(production.add_options, folder, "--longest", "2000", "--output-tokens", "4", "4", *given)


def test_an_arm_serves_mixed_traffic_within_its_places_and_asks_its_probes(tmp_path: Path) -> None:
    limits = ("--seconds", "0.5", "--in-flight", "8", "--warm-up", "40", "--requests", "2000", "--probes", "4")
    options = production_options(tmp_path, *limits)
    engine = StreamingStub(options)
    asked = production.requests(Prompts(50_000), options)
    served = engine.run(production.serve(engine, asked, options, "salt"))
    assert engine.most <= 8
    assert served["timings"]
    assert all(len(each.gaps_ms) == 3 and each.ended_s is not None for each in served["timings"])
    assert len(served["probes"]) == options.probes
    assert len(engine.prompts) == options.warm_up + len(served["timings"]) + options.probes


def test_both_arms_serve_the_load_and_are_judged(tmp_path: Path) -> None:
    # However slow the machine, enough prompts to be asked for again are among those of the warm-up.
    limits = ("--seconds", "0.3", "--in-flight", "4", "--warm-up", "40", "--requests", "900", "--runs", "2")
    result = production.run(StreamingStub, production_options(tmp_path, *limits, "--probes", "2"))
    assert result["engine"] == "stub"
    assert result["failed"] == 0
    assert result["probes"]["asked"] == 4
    assert [len(result["figures"][arm]) for arm in ARMS] == [2, 2]


def one_run(ms: float, per_s: int, probe: float = -0.1) -> dict[str, Any]:
    one = Timing("new", 9, ttft_ms=ms, gaps_ms=[ms], ended_s=1.0)
    return {"timings": [one] * per_s, "probes": [{1: probe, 2: -3.0}]}


@pytest.mark.parametrize(
    ("ours", "worse", "polluted"),
    [
        (one_run(10, 300), [], 0),
        (one_run(5, 400), [], 0),
        (one_run(20, 300), [*FIGURES], 0),
        (one_run(10, 260), ["requests_per_s"], 0),
        (one_run(10, 300, -2.0), [], 2),
    ],
)
def test_what_is_worse_than_stock_and_what_is_polluted(
    ours: dict[str, Any], worse: list[str], polluted: int, tmp_path: Path
) -> None:
    runs = {"stock": [one_run(10, 300), one_run(10, 300, -0.1001)], "semblend": [ours, ours]}
    result = production.judge(runs, production_options(tmp_path, "--seconds", "1"))
    assert (result["worse"], result["undecided"], result["failed"]) == (worse, [], 0)
    assert result["probes"]["polluted"] == polluted


def test_a_request_that_failed_has_no_time_and_is_no_throughput(tmp_path: Path) -> None:
    fast, options = Timing("new", 9, ttft_ms=0.1, gaps_ms=[0.1], ended_s=None), ("--seconds", "1")
    ours = {"timings": [*one_run(10, 260)["timings"], *[fast] * 240], "probes": [{1: -0.1, 2: -3.0}, None]}
    runs = {"stock": [one_run(10, 300)] * 2, "semblend": [ours, ours]}
    result = production.judge(runs, production_options(tmp_path, *options))
    assert result["failed"] == 480
    assert result["ratios"]["ttft_p50_ms"]["value"] == 1
    assert result["worse"] == ["requests_per_s"]
    assert result["figures"]["semblend"][0]["by_kind"]["new"]["requests"] == 260
    assert throughput.judge([[each | {"seconds": 1} for each in runs[arm]] for arm in ARMS], 0.5)["requests_per_s"] == {
        "stock": [300, 300],
        "semblend": [260, 260],
    }


@pytest.mark.parametrize(
    ("stock", "ours", "undecided"),
    [
        ([one_run(10, 300)], [one_run(20, 200)], [*FIGURES, "requests_per_s"]),
        (
            [one_run(10, 9)] * 2,
            [one_run(20, 8)] * 2,
            ["ttft_p95_ms", "ttft_p99_ms", "inter_token_p99_ms", "requests_per_s"],
        ),
        ([one_run(10, 0)] * 2, [one_run(20, 0)] * 2, [*FIGURES, "requests_per_s"]),
    ],
)
def test_what_one_run_or_too_few_requests_cannot_tell_neither_holds_nor_fails(
    stock: list[Any], ours: list[Any], undecided: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = production_options(tmp_path, "--seconds", "1")
    result = production.judge({"stock": stock, "semblend": ours}, options)
    assert result["undecided"] == undecided
    assert not {*result["worse"]} & {*undecided}
    said = capsys.readouterr().out
    assert said.count("undecided ") == len(undecided)
    throughput.judge([[each | {"seconds": 1} for each in arm] for arm in (stock, ours)], 0.5)


@pytest.mark.parametrize(("probe", "polluted", "verdict"), [(-0.1, 0, "holds"), (-2.0, None, "undecided")])
def test_of_one_stock_run_it_is_known_only_that_nothing_strayed(
    probe: float, polluted: int | None, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {"stock": [one_run(10, 50)], "semblend": [one_run(10, 50, probe)]}
    assert production.judge(runs, production_options(tmp_path))["probes"]["polluted"] == polluted
    assert f"{verdict} polluted probes" in capsys.readouterr().out


def test_prompts_that_a_run_did_not_send_are_no_probes_of_it(tmp_path: Path) -> None:
    options = production_options(tmp_path, "--seconds", "0.01", "--in-flight", "1", "--warm-up", "4")
    engine = StreamingStub(options)
    asked = production.requests(Prompts(50_000), options)
    served = engine.run(production.serve(engine, asked, options, "salt"))
    sent = asked[: 4 + len(served["timings"])]
    assert len(served["probes"]) == sum(each.kind == "reordered" for each in sent) < options.probes


# --- Throughput ------------------------------------------------------------------------------------------------------


def test_throughput_serves_the_share_that_is_reusable_behind_its_donors(tmp_path: Path) -> None:
    limits = ("--tokens", "300", "--requests", "6", "--in-flight", "2", "--runs", "1", "--output-tokens", "3")
    options = options_for(throughput.add_options, tmp_path, *limits)
    engine = StreamingStub(options)
    load = throughput.SteadyLoad(engine, options)
    served = load(1)
    assert list(served) == [0.0, 0.5]
    assert by_kind(served[0.0]["timings"])["new"]["requests"] == 6
    half = by_kind(served[0.5]["timings"])
    assert {kind: each["requests"] for kind, each in half.items()} == {"new": 3, "reusable": 3}
    assert all(len(each.gaps_ms) == 2 for each in served[0.5]["timings"])
    assert engine.most == 2
    assert len(engine.prompts) == 6 + 3 + 6


def test_throughput_of_both_arms_is_compared_run_by_run(tmp_path: Path) -> None:
    limits = ("--tokens", "300", "--requests", "40", "--in-flight", "8", "--runs", "2", "--shares", "0")
    found = throughput.run(StreamingStub, options_for(throughput.add_options, tmp_path, *limits))["shares"][0.0]
    assert found["failed"] == 0
    assert found["ratios"]["requests_per_s"]["value"] < 1, "twice as slow by a clock that both arms have"
    # One stall of a busy machine decides which is longer.
    gaps = found["ratios"]["inter_token_p99_ms"]
    assert 0 < gaps["low"] <= gaps["value"] <= gaps["high"]
    assert {arm: len(found["figures"][arm]) for arm in ARMS} == {"stock": 2, "semblend": 2}


def test_a_request_that_fails_is_counted_and_the_others_go_on(tmp_path: Path) -> None:
    engine = StreamingStub(options_for(throughput.add_options, tmp_path))
    asked = [throughput.asked_for("new", prompt, 2) for prompt in ([1, 2], [13], [3])]
    timings = engine.run(serve_all(Clients(engine, "salt"), asked))
    assert [each.ended_s is None for each in timings] == [False, True, False]
    assert failed(timings) == 1


async def serve_all(clients: Clients, asked: list[Any]) -> list[Timing]:
    return await clients.serve(asked, lambda: 2)
