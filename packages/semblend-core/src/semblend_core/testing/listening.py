"""What a provider answers and is told, for a subject that reports it."""

from __future__ import annotations

from semblend_core.contract import LookupRequest, LookupResult, Outcome, SemanticLookupProvider


def listen_to(provider: SemanticLookupProvider) -> tuple[list[LookupResult], list[Outcome]]:
    """Lists that grow with every lookup and every outcome of ``provider`` from now on."""
    lookups: list[LookupResult] = []
    outcomes: list[Outcome] = []
    look_up, report = provider.lookup, provider.report_outcome

    def lookup(request: LookupRequest) -> LookupResult:
        lookups.append(look_up(request))
        return lookups[-1]

    def report_outcome(outcome: Outcome) -> None:
        outcomes.append(outcome)
        report(outcome)

    provider.lookup, provider.report_outcome = lookup, report_outcome  # type: ignore[method-assign]
    return lookups, outcomes
