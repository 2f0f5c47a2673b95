"""Kinds of plans, whose answers stray by different amounts and are held to the target apart."""

from __future__ import annotations

from semblend_core.recompute.reuse import MOST_FEW

ONE_PLACE, FEW_PLACES, MANY_PLACES = "one_place", "few_places", "many_places"
KINDS = (ONE_PLACE, FEW_PLACES, MANY_PLACES)


def kind_of(places: int) -> str:
    """``places``: documents or passages that a plan takes. A request is of the worst kind that is in its KV."""
    if places <= 1:
        return ONE_PLACE
    return FEW_PLACES if places <= MOST_FEW else MANY_PLACES
