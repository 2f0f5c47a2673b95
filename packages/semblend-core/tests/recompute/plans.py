"""Plans of known shape for the tests of policies."""

from __future__ import annotations

from semblend_core import Plan, Span


def one_document(tokens: int = 1000, instruction: int = 40, question: int = 30) -> Plan:
    """A document behind a new instruction, with a question behind it."""
    return Plan.over("r", instruction + tokens + question, 0, [Span(instruction, "donor", 12, tokens)])


def edited_document() -> Plan:
    """A document of which a few words were changed at two places."""
    spans = [Span(40, "donor", 12, 300), Span(345, "donor", 315, 400), Span(750, "donor", 721, 200)]
    return Plan.over("r", 1000, 0, spans)


def composite(passages: int = 4, length: int = 300, question: int = 30, exact: int = 20) -> Plan:
    """Passages of as many donors behind an exact prefix, a question behind them."""
    spans = [Span(exact + number * length, f"donor-{number}", 700, length) for number in range(passages)]
    return Plan.over("r", exact + passages * length + question, exact, spans)
