from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from sembench.report.answers import choose_pairs, find_pairs, mark_differences
from sembench.report.comparison import Named, render_comparison, why_not_comparable
from sembench.report.figures import NOT_MEASURED
from sembench.report.headline import count_reused_tokens, group_rows, summarize_result
from sembench.report.length import make_bands
from sembench.report.load_curves import render_load_curves
from sembench.report.page import render_report
from sembench.report.transforms import find_points
from sembench.schema import EngineSummary, Interval, Rate, Result

Replay = Callable[..., Result]


def test_the_same_results_give_the_same_bytes(replay: Replay) -> None:
    assert render_report([replay()]) == render_report([replay()])


def test_nothing_measured_means_no_figure_at_all(nothing_measured: Result) -> None:
    rows = [row for _, group in group_rows(nothing_measured) for row in group]
    assert {row.value for row in rows} == {NOT_MEASURED}
    assert summarize_result(nothing_measured) == "None of the headline figures was measured."
    page = render_report([nothing_measured])
    assert "0%" not in page.split("</style>")[1]
    assert "×" not in page.split("</style>")[1]


def test_the_summary_says_when_controls_did_not_stay_cold(replay: Replay) -> None:
    result = replay()
    assert "Negative controls stayed cold (0 of 6)." in summarize_result(result)
    result.aggregate.negative_control_backend_confirmed_rate_by_request = Rate.of(2, 6)
    assert "Negative controls did not stay cold: 2 of 6 reused." in summarize_result(result)


def test_the_summary_says_when_the_interval_shows_no_difference(replay: Replay) -> None:
    result = replay()
    assert result.paired is not None
    assert "no difference is shown" not in summarize_result(result)
    result.paired.blended_ttft_speedup_median = Interval(value=1.02, low=0.97, high=1.10, n=40)
    assert "The interval holds 1: no difference is shown." in summarize_result(result)


def test_the_speed_of_hits_stands_beside_the_hit_rate(replay: Replay) -> None:
    row = next(row for _, group in group_rows(replay()) for row in group if row.name.startswith("Speed-up of hits"))
    assert "hits 42 of 48" in str(row.made_of)


def test_an_offline_result_speaks_of_what_could_be_reused_only(replay: Replay) -> None:
    offline = replay(kind="offline")
    offline.aggregate.negative_control_semantic_eligible_rate_by_request = Rate.of(0, 6)
    page = render_report([offline])
    assert "No engine took part" not in page  # without both rates there is no such sentence
    assert "Of the negative controls 0 of 6 would have been given something to reuse." in page
    assert "TTFT by context length" not in page


def test_failed_requests_are_in_the_summary(replay: Replay) -> None:
    result = replay()
    result.aggregate.requests_failed = 3
    assert "3 of 51 requests failed." in summarize_result(result)


def test_reused_tokens_are_counted_over_warm_requests_that_tell_them(replay: Replay) -> None:
    result = replay()
    warm = [record for record in result.requests if record.arm == "warm"]
    warm[0].confirmed_tokens = None
    rate = count_reused_tokens(result)
    assert rate is not None
    assert rate.numerator == sum(record.confirmed_tokens or 0 for record in warm[1:])
    assert rate.denominator == sum(record.prompt_tokens or 0 for record in warm[1:])


def test_bands_double_and_hold_every_usable_request_once(replay: Replay) -> None:
    result = replay()
    result.requests[0].status = "error"
    result.requests[1].ttft_ms = None
    bands = make_bands(result.requests)
    assert all(later.upper == 2 * earlier.upper for earlier, later in pairwise(bands))
    usable = [
        record
        for record in result.requests
        if record.status == "ok" and record.ttft_ms is not None and not record.negative_control
    ]
    assert sum(len(values) for band in bands for values in band.ttft.values()) == len(usable)
    for record in usable:
        band = next(band for band in bands if band.upper >= (record.prompt_tokens or 0))
        assert record.ttft_ms in band.ttft[record.arm]


def test_only_transforms_with_both_figures_are_points(replay: Replay) -> None:
    result = replay()
    result.by_transform["rag_reorder"].aggregate.kl_mean = None
    result.by_transform["sparse_edit"].paired = None
    shown = {point.transform for point in find_points(result)}
    assert shown == set(result.by_transform) - {"rag_reorder", "sparse_edit"}


def test_the_answers_that_differ_most_are_shown_first_and_then_every_transform(replay: Replay) -> None:
    pairs = find_pairs(replay())
    shown = choose_pairs(pairs)
    assert shown[0].distance == max(pair.distance for pair in pairs)
    assert len(shown) == 6
    assert len({pair.warm.transform for pair in shown[2:]}) == 4


def test_only_words_that_differ_are_marked() -> None:
    left, right = mark_differences("the cause was\na leak", "the cause was a fire")
    assert left == "the cause was\na <mark>leak</mark>"
    assert right == "the cause was a <mark>fire</mark>"


def named(*results: Result) -> list[Named]:
    return [Named(name, result) for name, result in zip("abc", results, strict=False)]


def test_results_of_one_manifest_are_shown_side_by_side_with_what_differs(replay: Replay) -> None:
    first, second = replay(), replay()
    second.config["budget"] = 0.30
    shown = render_comparison(named(first, second))
    assert "Not comparable" not in shown
    assert shown.count("2.86×") >= 2
    assert "config.budget" in shown
    assert "0.15" in shown
    assert "config.policy" not in shown


def test_results_of_different_manifests_are_refused_and_no_figure_is_shown(replay: Replay) -> None:
    shown = render_comparison(named(replay(), replay(sha256="cd" * 32)))
    assert "Not comparable" in shown
    assert "different manifests" in shown
    assert "cd" * 32 in shown
    assert "×" not in shown


def test_an_unknown_manifest_is_refused(replay: Replay, nothing_measured: Result) -> None:
    assert "b is not known" in (why_not_comparable(named(replay(), nothing_measured)) or "")


def test_different_items_of_one_manifest_are_refused(replay: Replay) -> None:
    assert "a 48, b 16" in (why_not_comparable(named(replay(), replay(items=16))) or "")


def test_a_load_result_and_a_replay_are_refused(replay: Replay, load_result: Result) -> None:
    assert why_not_comparable(named(replay(), load_result)) == "Load results and replays have no figure in common."
    assert why_not_comparable(named(load_result, load_result)) is None
    assert "tokens/s" in render_comparison(named(load_result, load_result))


def test_a_load_point_with_errors_is_remarked(load_result: Result) -> None:
    shown = render_load_curves(load_result, "") or ""
    assert "3 of 60 requests failed (http_503 3)" in shown
    assert "0 → 7" in shown


def test_load_entries_of_another_form_are_said_to_be_unreadable(load_result: Result) -> None:
    load_result.load = [{"mode": "sideways"}]
    assert "cannot be read" in (render_load_curves(load_result, "") or "")


def test_engine_events_show_only_what_an_engine_tells() -> None:
    summary = EngineSummary(engine="vllm", inputs=["a.log"], lines=9, unparsed_lines=0, materialized_tokens=512)
    summary.declined = {"no_spans": 3}
    from sembench.report.outcomes import render_engine_events

    shown = render_engine_events([summary]) or ""
    assert "512" in shown
    assert "3 of 3" in shown
    assert "Lookups" not in shown
    assert render_engine_events([]) is None
