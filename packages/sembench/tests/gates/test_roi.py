"""roi: formulas, and refusal where a figure is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result as Ended
from hypothesis import given
from hypothesis import strategies as st

from sembench.results.roi import Prices, Roi, break_even_rate, net_ms, return_on_reuse
from sembench.schema import InputError, read_json

Run = Callable[..., Ended]
times = st.floats(0.01, 1e4)


@given(times, times)
def test_at_the_break_even_rate_gain_and_tax_are_even(gain: float, tax: float) -> None:
    rate = break_even_rate(gain, tax)
    assert rate is not None
    assert 0 <= rate <= 1
    assert net_ms(gain, tax, rate) == pytest.approx(0, abs=1e-6 * max(gain, tax))


def test_free_misses_pay_from_the_first_hit_and_worthless_hits_never() -> None:
    assert break_even_rate(50.0, -1.0) == 0
    assert break_even_rate(0.0, 1.0) is None
    assert break_even_rate(-5.0, 1.0) is None


def test_the_figures_are_those_of_the_pairs(bench: Any) -> None:
    """Four hits of 100 ms cold and 50 warm with 128 tokens, one miss of 100 and 102."""
    told = return_on_reuse(bench.result("cold", "warm"), Prices(prefill_per_1k_tokens=0.5, gpu_hour=3.6))
    assert (told.gain_ms.value, told.gain_ms.n) == (50.0, 4)
    assert (told.miss_tax_ms.value, told.miss_tax_ms.n) == (2.0, 1)
    assert told.break_even_hit_rate.value == pytest.approx(2 / 52)
    assert (told.hit_rate.value, told.hit_rate.numerator, told.hit_rate.denominator) == (1.0, 4, 4)
    assert told.net_ms_per_request.value == 50.0
    assert told.break_even_hit_rate.low is None, "one miss has no spread"
    assert (told.tokens_saved_per_hit, told.tokens_saved_per_request) == (128, 128)
    assert told.gpu_cost_saved_per_1000_requests == pytest.approx(1000 * 50 * 3.6 / 3.6e6)
    assert told.prefill_cost_saved_per_1000_requests == pytest.approx(128 / 1000 * 0.5 * 1000)


def test_a_pair_of_which_nothing_is_known_is_neither_hit_nor_miss(bench: Any) -> None:
    result = bench.result("cold", "warm")
    unknown = next(record for record in result.requests if record.arm == "warm")
    unknown.confirmed_tokens = None
    told = return_on_reuse(result)
    assert (told.gain_ms.n, told.miss_tax_ms.n, told.pairs_left_out) == (3, 1, 1)
    assert (told.hit_rate.numerator, told.hit_rate.denominator) == (3, 4)


def test_what_the_engines_own_prefix_cache_served_is_no_miss(bench: Any) -> None:
    result = bench.result("cold", "warm")
    served = next(record for record in result.requests if record.arm == "warm")
    served.confirmed_tokens, served.engine_cached_tokens = 0, 96
    told = return_on_reuse(result)
    assert (told.gain_ms.n, told.miss_tax_ms.n, told.pairs_left_out) == (3, 1, 1)
    assert told.miss_tax_ms.value == 2.0


def test_an_assumed_hit_rate_scales_gains_and_tokens(bench: Any) -> None:
    told = return_on_reuse(bench.result("cold", "warm"), hit_rate=0.25)
    assert told.net_ms_per_request.value == pytest.approx(0.25 * 50 - 0.75 * 2)
    assert told.tokens_saved_per_request == 32
    assert told.hit_rate.numerator is None
    assert told.gpu_cost_saved_per_1000_requests is None


def test_intervals_hold_their_value_and_repeat(bench: Any) -> None:
    bench.items.append(bench.items[-1].model_copy(update={"item_id": f"{99:016x}"}))
    result = bench.result("cold", "warm")
    for number, record in enumerate(record for record in result.requests if record.arm == "warm"):
        record.ttft_ms = 40.0 + 5 * number
    first, second = return_on_reuse(result), return_on_reuse(result)
    assert first == second
    for interval in (first.gain_ms, first.net_ms_per_request):
        assert interval.low is not None
        assert interval.high is not None
        assert interval.low < (interval.value or 0) < interval.high


@pytest.mark.parametrize(
    ("arms", "warm", "told"),
    [
        (("warm",), {}, "no clean pair"),
        (("cold", "warm"), {"confirmed_tokens": None}, "no backend event says"),
        (("cold", "warm"), {"confirmed_tokens": 0}, "what a hit gains is not known"),
        (("cold", "warm"), {"confirmed_tokens": 5}, "what a miss costs is not known"),
    ],
)
def test_a_missing_figure_is_refused_by_name(
    arms: tuple[str, ...], warm: dict[str, Any], told: str, bench: Any, sembench: Run
) -> None:
    result = bench.result(*arms, warm=warm)
    with pytest.raises(InputError, match=told):
        return_on_reuse(result)
    ended = sembench("roi", "--result", bench.save(result))
    assert (ended.exit_code, told in ended.stderr) == (1, True)


def test_the_command_prints_and_writes_the_figures(bench: Any, sembench: Run) -> None:
    output = bench.folder / "roi.json"
    ended = sembench(
        *("roi", "--result", bench.save(bench.result("cold", "warm")), "--gpu-hour-cost", "4", "--output", output)
    )
    assert ended.exit_code == 0, ended.output
    assert "1.000 (4 of 4 pairs)" in ended.stdout
    assert read_json(output, Roi).gain_ms.value == 50.0
