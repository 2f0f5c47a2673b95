"""The brain of placement: which earlier prompts a new one shares tokens with, and which worker that speaks for.

It knows no router and no transport. Read in this order: ``findings``, ``book``, ``credit``, ``choosing``, ``account``.
A placement says where a request was sent, and never that anything was reused there.
"""

from semblend_dynamo.placement.account import Account, Placed, as_prometheus
from semblend_dynamo.placement.book import Added, DonorBook, DonorKey
from semblend_dynamo.placement.choosing import Candidate, Decision, PlacementRule, Reason, choose
from semblend_dynamo.placement.credit import credits_of, likeness_credits
from semblend_dynamo.placement.findings import Finding, Piece
from semblend_dynamo.placement.landings import Landings
from semblend_dynamo.placement.settings import PlacementSettings

__all__ = [
    "Account",
    "Added",
    "Candidate",
    "Decision",
    "DonorBook",
    "DonorKey",
    "Finding",
    "Landings",
    "Piece",
    "Placed",
    "PlacementRule",
    "PlacementSettings",
    "Reason",
    "as_prometheus",
    "choose",
    "credits_of",
    "likeness_credits",
]
