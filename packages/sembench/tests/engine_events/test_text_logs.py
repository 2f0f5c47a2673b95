"""The text formats of vLLM, SGLang and LMCache: what is found, what is promised, what landed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sembench.engine_events import summarize

Log = Callable[..., Path]

VLLM = (
    "INFO 06-22 18:00:01 [connector.py:619] SemBlend donor registered request_id=d1 namespace=n tokens=898 blocks=57",
    "INFO 06-22 18:00:02 [connector.py:374] SemBlend semantic lookup hit request_id=r1 donor_id=d1 similarity=0.9670 "
    "kind=request_only reusable_tokens=880 reason=semblend_discovery latency_ms=30",
    "INFO 06-22 18:00:02 [connector.py:414] SemBlend request-local experimental load advertised request_id=r1 "
    "donor_id=d1 tokens=880",
    "INFO 06-22 18:00:02 [connector.py:526] SemBlend materializing request_id=r1 donor_id=d1 tokens=880",
)
LANDED = "INFO 06-22 18:00:03 [connector.py:557] SemBlend materialized request_id=r1 donor_id=d1 tokens=880"


def test_vllm_counts_only_what_materialized(log: Log) -> None:
    summary = summarize("vllm", [log(*VLLM, LANDED)])
    assert (summary.donors_registered, summary.lookup_hits, summary.loads_advertised) == (1, 1, 1)
    assert (summary.materialization_events, summary.materialized_tokens) == (1, 880)
    request = summary.requests["r1"]
    assert (request.advertised_tokens, request.confirmed_tokens, request.lookup_us) == (880, 880, 30_000)
    assert list(summary.requests) == ["r1"], "a donor is no request"
    assert summary.donor_requests == ["d1"]


def test_vllm_promise_without_landing_is_no_reuse(log: Log) -> None:
    summary = summarize("vllm", [log(*VLLM)])
    assert summary.advertised_tokens == 880
    assert (summary.materialization_events, summary.materialized_tokens) == (0, 0)
    assert summary.requests["r1"].confirmed_tokens == 0


def test_what_vllm_cannot_tell_is_null(log: Log) -> None:
    summary = summarize("vllm", [log(*VLLM, LANDED)])
    assert summary.lookups is None, "misses are not in this log, so hits are not all lookups"
    assert summary.plans is None
    assert summary.materialized_bytes is None
    assert summary.donors_captured is None


def test_vllm_lookups_are_known_where_misses_are_written(log: Log) -> None:
    miss = "INFO SemBlend semantic lookup miss request_id=r2 namespace=n latency_ms=4"
    summary = summarize("vllm", [log(*VLLM, LANDED, miss)])
    assert (summary.lookups, summary.lookup_hits) == (2, 1)
    assert summary.requests["r2"].confirmed_tokens == 0


def test_a_log_without_our_lines_tells_nothing(log: Log) -> None:
    for engine in ("vllm", "sglang", "lmcache"):
        summary = summarize(engine, [log("INFO 06-22 18:00:00 Application startup complete.")])
        assert summary.materialization_events is None
        assert summary.materialized_tokens is None
        assert summary.exact_retrieved_tokens is None
        assert summary.requests == {}


def test_colours_prefixes_and_lost_line_ends_are_seen_through(log: Log) -> None:
    coloured = f"\x1b[32m2026-06-22T18:00:05.123456789Z\x1b[0m (Worker_TP0 pid=12) {LANDED}\x1b[K"
    joined = f"progress 10%\rprogress 20%\r{LANDED}{LANDED.replace('r1', 'r2').replace('880', '16')}"
    summary = summarize("vllm", [log(coloured, joined)])
    assert (summary.materialization_events, summary.materialized_tokens) == (3, 1776)
    assert summary.requests["r2"].confirmed_tokens == 16
    assert summary.first_time == summary.last_time == 1782151205.123456


def test_every_rank_tells_of_the_same_tokens_and_one_is_counted(log: Log) -> None:
    ranks = [f"(Worker_DP0_TP{rank} pid={100 + rank}) {LANDED}" for rank in range(4)]
    summary = summarize("vllm", [log(*ranks)])
    assert (summary.materialization_events, summary.materialized_tokens) == (1, 880)
    assert summary.extra["lines_of_later_ranks"] == 3


def test_an_event_without_its_figure_is_unreadable_and_not_guessed(log: Log) -> None:
    summary = summarize("vllm", [log(*VLLM, "INFO SemBlend materialized request_id=r1 donor_id=d1 tok")])
    assert summary.unparsed_lines == 1
    assert "engine.log:5" in summary.torn_lines[0]
    assert summary.materialized_tokens == 0


def test_sglang_separates_matches_from_realized_tokens(log: Log) -> None:
    lines = (
        "[2026-06-22 18:00:00 TP0] [FUZZY] register_donor_async: ok request_id=d1 tokens=899 embed=394.1ms",
        "[2026-06-22 18:00:01 TP0] [FUZZY] semantic hit similarity=0.91 matched_tokens=512 request_id=r1 donor_id=d1",
        "[2026-06-22 18:00:01 TP0] [FUZZY RADIX] Fuzzy match success: rid=r1 cached=512, prompt=1024, offset=0",
        "[2026-06-22 18:00:01 TP0] [FUZZY RADIX] fuzzy match success: rid=r1 cached=512 prompt=1024 offset=0",
    )
    found = summarize("sglang", [log(*lines)])
    assert (found.donors_registered, found.lookup_hits, found.loads_advertised) == (1, 1, 1)
    assert (found.materialization_events, found.requests["r1"].confirmed_tokens) == (0, 0)
    assert found.extra["repeated_matches"] == 1
    landed = "[2026-06-22 18:00:02 TP0] [FUZZY] Realized 512 fuzzy tokens (contiguous): copied donor KV"
    summary = summarize("sglang", [log(*lines, landed, landed.replace("TP0", "TP1"))])
    assert (summary.materialization_events, summary.materialized_tokens) == (1, 512)
    assert summary.requests["r1"].confirmed_tokens == 512


def test_sglang_phases_and_their_sum_are_counted_once(log: Log) -> None:
    phase = (
        "[FUZZY RADIX] segmented prefill realized donor phase: backend=phased_paged rid=r1 donor_tokens={} target=[0,9)"
    )
    summary = summarize(
        "sglang",
        [
            log(
                "[FUZZY RADIX] Fuzzy match success: rid=r1 cached=3894, prompt=4024, offset=0, quality_cosine=0.964",
                phase.format(608),
                phase.format(656),
                "[FUZZY] Realized 1264 fuzzy tokens (2 segments)",
            )
        ],
    )
    assert (summary.materialization_events, summary.materialized_tokens) == (2, 1264)
    assert summary.requests["r1"].confirmed_tokens == 1264
    assert summary.advertised_tokens == 3894


def test_sglang_sum_of_one_request_hides_no_tokens_of_another(log: Log) -> None:
    """Two lines say 64: one sums up the phases of r1, and the other must count."""
    phase = "[FUZZY RADIX] segmented prefill realized donor phase: rid=r1 donor_tokens=32 target=[0,32)"
    realized = "[FUZZY] Realized 64 fuzzy tokens"
    summary = summarize("sglang", [log(phase, phase, f"{realized} (2 segments)", f"{realized} (contiguous)")])
    assert (summary.materialization_events, summary.materialized_tokens) == (3, 128)


def test_sglang_realized_tokens_of_an_ambiguous_owner_belong_to_no_request(log: Log) -> None:
    match = "[FUZZY RADIX] Fuzzy match success: rid={} cached=512, prompt=1024, offset=0"
    summary = summarize(
        "sglang", [log(match.format("a"), match.format("b"), "[FUZZY] Realized 512 fuzzy tokens (contiguous)")]
    )
    assert summary.materialized_tokens == 512
    assert summary.extra["realized_without_request"] == 1
    assert {request.confirmed_tokens for request in summary.requests.values()} == {None}, "one of the two has them"


def test_sglang_failed_matches_make_lookups_known(log: Log) -> None:
    summary = summarize(
        "sglang",
        [log("[FUZZY RADIX] Fuzzy match failed: no suitable match found", "register_donor: ok request_id=d tokens=5")],
    )
    assert (summary.lookups, summary.lookup_hits, summary.donors_registered) == (1, 0, 1)


def test_lmcache_is_an_exact_baseline_and_never_semantic(log: Log) -> None:
    summary = summarize(
        "lmcache",
        [
            log(
                "(EngineCore_DP0 pid=4) [2026-01-20 21:20:40,951] LMCache INFO: Reqid: cmpl-a-0, Total tokens 2005, "
                "LMCache hit tokens: 0, need to load: 0 (vllm_v1_adapter.py:1284)",
                "[2026-01-20 21:20:41,133] LMCache INFO: Stored 1792 out of total 1792 tokens. size: 0.2461 GB",
                "LMCache INFO: Reqid: cmpl-b-0, Total tokens 2005, LMCache hit tokens: 1792, need to load: 1792",
                "LMCache INFO: Retrieved 1792 out of 1792 out of total 2005 tokens (cache_engine.py:500)",
                "LMCache INFO: [req_id=c] Retrieved 256 out of 512 required tokens (from 600 total tokens)",
                "LMCache INFO: Stored 128 tokens in 0.1 seconds",
            )
        ],
    )
    assert (summary.lookups, summary.lookup_hits) == (2, 1)
    assert (summary.exact_retrieved_tokens, summary.stored_tokens) == (2048, 1920)
    assert summary.materialization_events is None
    assert summary.materialized_tokens is None
    assert all(request.confirmed_tokens is None for request in summary.requests.values())


def test_a_request_whose_landing_cannot_be_read_has_no_zero(log: Log) -> None:
    hit, landed = "INFO SemBlend semantic lookup hit request_id=r1", "INFO SemBlend materialized request_id=r1 tokens="
    assert summarize("vllm", [log(hit)]).requests["r1"].confirmed_tokens == 0
    summary = summarize("vllm", [log(hit, landed)])
    assert summary.unparsed_lines == 1
    assert summary.requests["r1"].confirmed_tokens is None


def test_each_event_of_a_line_goes_by_the_rank_before_it(log: Log) -> None:
    event = "SemBlend materialized request_id=r1 tokens=880"
    for line in (
        f"(Worker_TP0 pid=1) INFO {event}(Worker_TP1 pid=2) INFO {event}",
        f"(Worker_TP1 pid=2) INFO {event}(Worker_TP0 pid=1) INFO {event}",
        f"(Worker_PP0_TP0 pid=1) INFO {event}(Worker_PP1_TP0 pid=2) INFO {event}",
    ):
        assert summarize("vllm", [log(line)]).materialized_tokens == 880


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        ("vllm", "INFO SemBlend materialized request_id=r1 tokens=0"),
        ("vllm", "INFO SemBlend materialized tokens=0"),
        ("sglang", "segmented prefill realized donor phase: rid=r1 donor_tokens=0"),
        ("trtllm", '{"event": "materialized", "request_id": "r1", "tokens": 0, "materialized": true}'),
    ],
)
def test_a_landing_of_nothing_is_no_event_of_reuse(engine: str, line: str, log: Log) -> None:
    summary = summarize(engine, [log(line)])
    assert (summary.materialization_events, summary.materialized_tokens) == (0, 0)
    assert summary.declined == {"nothing_materialized": 1}
    assert all(request.confirmed_tokens == 0 for request in summary.requests.values())
