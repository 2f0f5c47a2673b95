from __future__ import annotations

import json
from pathlib import Path

import pytest

from sembench.laboratory.latency import LinearLatency, calibrated_latency, measured_latency
from sembench.laboratory.requests import CacheRequest
from sembench.schema import InputError
from semblend_core.costs import CostFile, Part, StepShape, StepTimes


def observed(tokens: int, ttft: float) -> CacheRequest:
    return CacheRequest("r", 0, (1,), (tokens,), ("user",), observed_ttft_ms=ttft, observed_prefill_tokens=tokens)


def test_the_default_is_the_published_formula() -> None:
    assert LinearLatency().ttft_ms(500, 1000) == pytest.approx(80 + 0.08 * 1000)


def test_calibration_finds_the_line_that_times_lie_on() -> None:
    fitted = calibrated_latency([observed(tokens, 42 + 0.3 * tokens) for tokens in (10, 500, 2000)])
    assert (fitted.base_ms, fitted.token_ms) == (pytest.approx(42), pytest.approx(0.3))


def test_calibration_never_finds_times_below_zero() -> None:
    falling = calibrated_latency([observed(10, 100), observed(1000, 50)])
    assert (falling.token_ms, falling.base_ms) == (0.0, pytest.approx(75))
    steep = calibrated_latency([observed(100, 1), observed(200, 30)])
    assert steep.base_ms == 0.0
    assert steep.token_ms > 0


@pytest.mark.parametrize("sizes", [[], [100], [100, 100]])
def test_calibration_says_what_a_trace_lacks(sizes: list[int]) -> None:
    with pytest.raises(InputError, match="observed_ttft_ms"):
        calibrated_latency([observed(tokens, 10.0) for tokens in sizes])


def test_measured_steps_give_what_the_engine_would_take(tmp_path: Path) -> None:
    times = StepTimes()
    for _ in range(4):
        for before, tokens in ((0, 300), (0, 2000), (0, 6000), (8000, 2000), (30000, 4000)):
            shape = StepShape.of([Part(before, tokens)])
            times.observe(shape, 5_000 + 50 * tokens + 0.004 * shape.attention)
    kept = CostFile(tmp_path, {"engine": "test"})
    kept.save(times.as_json())
    model = measured_latency(kept.path)
    assert model.ttft_ms(0, 2000) == pytest.approx((5_000 + 50 * 2000 + 0.004 * 2000 * 1000) / 1000, rel=0.15)
    assert model.ttft_ms(0, 16_000) > 1.9 * model.ttft_ms(8_000, 8_000) * 0.5
    # A token late in a prompt costs more: attention.
    assert model.saved_ms(50_000, 512) > 1.5 * model.saved_ms(0, 512)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"schema": "semblend.costs.v9", "times": {}}',
        '{"schema": "semblend.costs.v2", "times": {"known": "x"}}',
    ],
)
def test_what_holds_no_costs_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"costs\.json"):
        measured_latency(path)


def test_a_path_that_can_be_none_is_refused() -> None:
    with pytest.raises(InputError, match="null byte"):
        measured_latency(Path("a\0b"))


def test_costs_that_were_hardly_learned_are_refused(tmp_path: Path) -> None:
    kept = CostFile(tmp_path, {"engine": "test"})
    times = StepTimes()
    times.observe(StepShape.of([Part(0, 300)]), 1000.0)
    kept.save(times.as_json())
    with pytest.raises(InputError, match="too few prefills"):
        measured_latency(kept.path)
    assert json.loads(kept.path.read_text())["schema"] == "semblend.costs.v2"
