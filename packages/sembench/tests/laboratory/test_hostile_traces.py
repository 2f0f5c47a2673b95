"""Traces that are well formed and mislead: sizes that differ, types that are names, times out of order."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from sembench.cli import main
from sembench.laboratory.anonymising import Anonymiser
from sembench.laboratory.belady import Accesses, bound_of
from sembench.laboratory.caches import SEMANTICS, Semantics, make_cache, replay
from sembench.laboratory.latency import LinearLatency
from sembench.laboratory.trace_schema import TraceRequest
from sembench.laboratory.traces import WRITERS, iterate_trace, read_trace
from semblend_core.eviction import POLICY_NAMES


def sembench(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def request(number: int, *blocks: tuple[str, int], kind: str = "other", **fields: Any) -> TraceRequest:
    listed = [{"content_hash": name, "token_count": tokens, "semantic_type": kind} for name, tokens in blocks]
    return TraceRequest.model_validate({"request_id": f"r{number}", "blocks": listed, **fields})


def written(path: Path, *requests: TraceRequest) -> Path:
    path.write_text("".join(WRITERS["jsonl"](requests)))
    return path


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1, 3, 40])), min_size=1, max_size=4)),
    st.sampled_from(SEMANTICS),
    st.sampled_from([1, 5, 43]),
)
def test_nobody_passes_belady_where_a_hash_comes_with_other_sizes(
    prompts: list[list[tuple[str, int]]], semantics: Semantics, budget: int
) -> None:
    requests = [request(number, *blocks).for_cache() for number, blocks in enumerate(prompts)]
    bound = bound_of(Accesses.of(requests, semantics, LinearLatency()), budget)
    for policy in POLICY_NAMES:
        tally = replay(requests, make_cache(policy, budget, semantics=semantics))
        assert tally.cached_tokens <= bound.cached_tokens + 1e-6
        assert tally.block_hits <= bound.block_hits + 1e-6


def test_a_pipe_is_refused_as_it_would_lose_its_beginning(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for command in (("replay-trace", "--cache-token-budget", 100), ("convert-trace", "--output", tmp_path / "o.jsonl")):
        done = sembench(*command, "--trace", pipe)
        assert done.exit_code == 2
        assert "pipe or a device" in done.output
    assert not (tmp_path / "o.jsonl").exists()


def test_a_type_that_nobody_knows_is_no_row_of_its_own(tmp_path: Path) -> None:
    """It may be anything, half a formula too, which matplotlib would try to set."""
    requests = [request(number, (f"h{number}", 60), kind=rf"$\frac{{{number}") for number in range(30)]
    trace = written(tmp_path / "t.jsonl", *requests)
    done = sembench(
        "replay-trace", "--trace", trace, "--cache-token-budget", 100, "--policies", "lru", "--output-dir", tmp_path
    )
    assert done.exit_code == 0, done.output
    (results,) = tmp_path.glob("*/replay_results.json")
    assert json.loads(results.read_text())["policies"][0]["evictions_by_type"] == {"other": 29.0}


def test_a_type_of_its_own_does_not_leave_the_house() -> None:
    told = "".join(WRITERS["jsonl"](Anonymiser(0).anonymise([request(0, ("a", 1), kind="patient-jane-doe")])))
    assert "jane" not in told
    assert '"semantic_type":"other"' in told


def test_anonymised_requests_keep_their_order_in_time(tmp_path: Path) -> None:
    late, early = (request(number, ("a", 1), timestamp_ms=at) for number, at in enumerate((9000.0, 4000.0)))
    trace = written(tmp_path / "t.jsonl", late, early)
    output = tmp_path / "o.jsonl"
    assert sembench("convert-trace", "--trace", trace, "--anonymise", "--output", output).exit_code == 0
    assert [each.timestamp_ms for each in iterate_trace(output)] == [5000, 0]


def test_an_empty_name_is_the_same_as_none_before_and_after() -> None:
    requests = [request(0, ("a", 1), tenant_id="", model_name=""), request(1, ("a", 1))]
    for read in (requests, list(Anonymiser(0).anonymise(requests))):
        first, second = (each.for_cache().keys for each in read)
        assert first == second


def test_names_are_numbered_in_the_order_in_which_they_come() -> None:
    requests = [request(number, ("a", 1), session_id=f"s{number // 2}", tenant_id="t") for number in range(6)]
    done = list(Anonymiser(0).anonymise(requests))
    assert [each.session_id for each in done] == [f"session-{number // 2}" for number in range(6)]
    assert {each.tenant_id for each in done} == {"tenant-0"}


def test_two_requests_of_one_name_do_not_become_one_in_csv(tmp_path: Path) -> None:
    trace = written(tmp_path / "t.jsonl", request(1, ("a", 1)), request(1, ("b", 1)))
    output = tmp_path / "o.csv"
    done = sembench("convert-trace", "--trace", trace, "--to", "csv", "--output", output)
    assert done.exit_code == 2
    assert "request_id" in done.output
    assert not output.exists()


def test_blocks_stand_where_they_say(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("request_id,content_hash,token_count,position\nr,b,5,1\nr,a,3,0\ns,d,5,7\ns,c,3,\n")
    assert [each.tokens for each in read_trace(path)] == [(3, 5), (5, 3)]


def test_csv_as_spreadsheets_write_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfrequest_id,content_hash,token_count\r\nr,a,5\r\n")
    assert [each.request_id for each in iterate_trace(path)] == ["r"]


@pytest.mark.parametrize(
    ("times", "apart"),
    [
        (("2023-11-16 18:17:03.5000000", "2023-11-16T18:17:04Z"), 0.5),
        (("2023-11-16 13:17:03-05:00", "2023-11-16 18:17:03.5+00:00"), 0.5),
        (("9999-12-31 23:59:59.99999999", "9999-12-31 23:59:59.99999999"), 0.0),
    ],
)
def test_azure_times_with_and_without_a_zone(tmp_path: Path, times: tuple[str, str], apart: float) -> None:
    path = tmp_path / "t.csv"
    lines = [f"{time},10,5" for time in times]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines, ""]))
    assert [each.at_s for each in read_trace(path)] == [0, pytest.approx(apart)]


def test_small_blocks_of_coding_sessions_are_told_apart(tmp_path: Path) -> None:
    """Taken together to 512 tokens, they have names longer than a hash may be."""
    many = list(range(1000, 1512))
    path = tmp_path / "s.json"
    requests = [{"t": at, "in": 512, "hash_ids": [*many[:-1], last]} for at, last in enumerate((1, 2, 1))]
    path.write_text(json.dumps({"id": "s", "block_size": 1, "requests": requests}))
    first, second, third = (each.blocks[0].content_hash for each in iterate_trace(path, "kv-cache-tester"))
    assert first == third != second


@pytest.mark.parametrize(
    ("option", "value"),
    [("--cache-share", "nan"), ("--base-ttft-ms", "nan"), ("--token-latency-ms", "inf"), ("--base-ttft-ms", "1e300")],
)
def test_numbers_that_are_none_are_refused_by_name(tmp_path: Path, option: str, value: str) -> None:
    trace = written(tmp_path / "t.jsonl", request(0, ("a", 1)))
    budget = [] if option == "--cache-share" else ["--cache-token-budget", "5"]
    done = sembench(
        "replay-trace", "--trace", trace, option, value, *budget, "--no-plots", "--output-dir", tmp_path / "o"
    )
    assert done.exit_code == 2
    assert option in done.output
    assert not (tmp_path / "o").exists()
