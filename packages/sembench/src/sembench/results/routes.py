"""Where a request was routed, and whether semantic placement sent it there: what routers say, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sembench.schema import RequestRecord

PATH_HEADERS = ("x-semblend-routing-path", "x-gateway-route", "x-route")
"""Which rule chose the worker."""
WORKER_HEADERS = (
    "x-semblend-routing-worker",
    "x-semblend-worker",
    "x-semblend-replica",
    "x-smg-routed-worker-id",
    "worker_id",
)
"""Which worker was chosen. ``worker_id`` is Dynamo's, from the answer itself."""
SEMANTIC_RULES = frozenset(
    {
        "semantic",
        "semantic_affinity",
        "semantic_hit",
        "semantic_likeness",
        "semantic_locality",
        "semantic_match",
        "semantic_placement",
    }
)
"""Rules that placed a request by what it means. Others with such a name say that nothing was found, that the search
failed or was off, or merely what the router is called."""


def read_worker(chunk: Mapping[str, Any]) -> dict[str, str]:
    """Dynamo's ``nvext.worker_id`` in a piece of an answer: the worker whose KV the prompt met, the prefill one."""
    nvext = chunk.get("nvext")
    told = nvext.get("worker_id") if isinstance(nvext, dict) else None
    if isinstance(told, dict):
        told = next(
            (told[name] for name in ("prefill_worker_id", "decode_worker_id") if told.get(name) is not None), None
        )
    return {"worker_id": str(told)} if isinstance(told, int | str) and not isinstance(told, bool) else {}


def worker_of(route: Mapping[str, str]) -> str | None:
    return next((route[name] for name in WORKER_HEADERS if name in route), None)


def was_placed(record: RequestRecord) -> bool | None:
    """Whether the request went where semantic placement sent it; None where no route metadata tells.

    A router that names its rule is believed. One that names workers only is held to where the item's donors went.
    """
    rules = [record.route[name].lower() for name in PATH_HEADERS if name in record.route]
    # The first is the semantic router's own word. Names of routes that others add to it say nothing of its choice.
    rules = rules[:1] if PATH_HEADERS[0] in record.route else rules
    if any(_is_semantic(rule) for rule in rules):
        return True
    worker = worker_of(record.route)
    if PATH_HEADERS[0] in record.route or worker is None or not record.donor_workers:
        return False if rules else None
    return worker in record.donor_workers


def has_choice(records: Sequence[RequestRecord]) -> bool:
    """Whether routes tell of a decision: a rule is named, or there are two workers to choose from."""
    if any(name in record.route for record in records for name in PATH_HEADERS):
        return True
    workers = {worker_of(record.route) for record in records} | {
        name for each in records for name in each.donor_workers
    }
    return len(workers - {None}) > 1


def _is_semantic(rule: str) -> bool:
    return rule.strip().replace("-", "_") in SEMANTIC_RULES
