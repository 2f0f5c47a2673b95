"""How figures are worded. What was not measured is said so, and a rate never stands without its counts."""

from __future__ import annotations

import math

from sembench.report.markup import Html, el, join
from sembench.schema import Interval, Rate

NOT_MEASURED = el("span", "not measured", class_="missing")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def known(value: float | None) -> float | None:
    """NaN and infinities are no measurements."""
    return value if value is not None and math.isfinite(value) else None


def number(value: float | None, digits: int = 3) -> Html | str:
    """``digits`` significant digits, with thousands separated; very small values as powers of ten."""
    value = known(value)
    if value is None:
        return NOT_MEASURED
    if value == 0 or abs(value) >= 0.001:
        return plain(value, digits)
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa} × 10{superscript(int(exponent))}"


def superscript(value: int) -> str:
    return str(value).translate(_SUPERSCRIPT)


def plain(value: float, digits: int = 3) -> str:
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}".replace("-", "−")


def count(value: int | float | None) -> Html | str:
    return NOT_MEASURED if known(value) is None else f"{value:,.0f}"


def milliseconds(value: float | None) -> Html | str:
    value = known(value)
    return NOT_MEASURED if value is None else f"{plain(value)} ms"


def times(value: float | None) -> Html | str:
    value = known(value)
    return NOT_MEASURED if value is None else f"{value:.2f}×"


def percent(value: float | None) -> Html | str:
    value = known(value)
    return NOT_MEASURED if value is None else f"{100 * value:.1f}%"


def difference(value: float | None) -> Html | str:
    """A difference of two shares, in percentage points."""
    value = known(value)
    return NOT_MEASURED if value is None else f"{100 * value:+.1f} points"


def counts_of(rate: Rate | None) -> str | None:
    if rate is None or known(rate.numerator) is None or known(rate.denominator) is None:
        return None
    return f"{rate.numerator:,.0f} of {rate.denominator:,.0f}"


def rate_cell(rate: Rate | None) -> Html | str:
    """The share and, beside it, what it was made of."""
    counts = counts_of(rate)
    if rate is None or counts is None:
        return NOT_MEASURED
    if known(rate.value) is None:
        return join((NOT_MEASURED, " ", el("span", counts, class_="of")))
    return join((percent(rate.value), " ", el("span", counts, class_="of")))


def interval_words(interval: Interval | None, unit: str = "×") -> str | None:
    if interval is None or known(interval.low) is None or known(interval.high) is None:
        return None
    return f"95% interval {interval.low:.2f} to {interval.high:.2f}{unit}".replace("-", "−")


def pairs_words(interval: Interval | None) -> str | None:
    return None if interval is None else f"{interval.n:,} {'pair' if interval.n == 1 else 'pairs'}"


def interval_cell(interval: Interval | None) -> Html | str:
    """A speed-up with its interval, short enough for a table."""
    if interval is None or known(interval.value) is None:
        return NOT_MEASURED
    bounds = None
    if known(interval.low) is not None and known(interval.high) is not None:
        bounds = el("span", f"{interval.low:.2f} to {interval.high:.2f}, n={interval.n:,}", class_="of")
    return join((times(interval.value), " ", bounds or el("span", f"n={interval.n:,}", class_="of")))
