"""What operators see: as JSON, and on the page that reads it."""

from __future__ import annotations

from typing import Any

from semblend_dynamo.router.building import Router


def replica_list(router: Router) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "url": each.url,
            "available": each.available,
            "healthy": each.healthy,
            "breaker": each.breaker.state.value,
            "in_flight": each.in_flight,
            "tokens_in_flight": each.tokens_in_flight,
            "served": each.served,
            "failures": dict(each.failures),
            "prompt_tokens": each.prompt_tokens,
            "cached_tokens": each.cached_tokens,
        }
        for each in router.backend.replicas
    ]


def status_of(router: Router) -> dict[str, Any]:
    placements: dict[str, int] = {}
    for metric in router.metrics.placements.collect():
        for sample in metric.samples:
            if sample.name.endswith("_total"):
                name = f"{sample.labels['path']}: {sample.labels['reason']}"
                placements[name] = placements.get(name, 0) + int(sample.value)
    return {
        "policy": router.settings.policy,
        "back_end": "smg" if router.settings.gateway else "replicas",
        "under_way": router.admission.under_way,
        "waiting": router.admission.waiting,
        "sessions": len(router.sessions),
        "donors": getattr(router.policy, "donors", None),
        "replicas": replica_list(router),
        "placements": placements,
        "decisions": router.decisions.newest(),
    }
