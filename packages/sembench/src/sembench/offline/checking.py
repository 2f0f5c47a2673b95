"""Whether a provider keeps the lookup contract: what it proposes must be there, token by token."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sembench.offline.blocks import Ids
from semblend_core import LookupRequest, LookupResult, Plan, Span


class ContractError(Exception):
    """The provider answered with something that no engine could load. The message says what."""


def checked_spans(result: object, request: LookupRequest, donors: Mapping[str, Ids]) -> tuple[Span, ...]:
    """The spans that the provider proposes, none where it declines; ContractError where they cannot be loaded.

    That spans are in order and do not overlap was checked when the plan was made: ``Plan`` refuses others.
    """
    if not isinstance(result, LookupResult):
        raise ContractError(f"lookup returned {type(result).__name__}, not a LookupResult")
    if result.plan is None:
        return ()
    _check_plan(result.plan, request)
    for span in result.plan.spans:
        _check_span(span, request.token_ids, donors)
    return result.plan.spans


def _check_plan(plan: Plan, request: LookupRequest) -> None:
    if plan.request_id != request.request_id:
        raise ContractError(f"the plan is for request {plan.request_id!r}, not {request.request_id!r}")
    if plan.prompt_tokens != request.token_ids.size:
        raise ContractError(f"the plan is for {plan.prompt_tokens} tokens, the prompt has {request.token_ids.size}")
    if plan.exact_prefix_tokens != request.exact_prefix_tokens:
        raise ContractError(f"the plan has an exact prefix of {plan.exact_prefix_tokens} tokens that nobody claimed")


def _check_span(span: Span, prompt: Ids, donors: Mapping[str, Ids]) -> None:
    donor = donors.get(span.donor_id)
    if donor is None:
        raise ContractError(f"a span names donor {span.donor_id!r}, which was never offered here")
    if span.donor_end > donor.size:
        raise ContractError(
            f"a span ends at {span.donor_end} of donor {span.donor_id!r}, which has {donor.size} tokens"
        )
    wanted = prompt[span.target_start : span.target_end]
    differing = np.flatnonzero(wanted != donor[span.donor_start : span.donor_end])
    if differing.size:
        raise ContractError(
            f"a span of {span.length} tokens at {span.target_start} differs from donor {span.donor_id!r} in "
            f"{differing.size} of them, first at prompt position {span.target_start + int(differing[0])}"
        )
