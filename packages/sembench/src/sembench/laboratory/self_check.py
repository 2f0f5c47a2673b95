"""``sembench simulate --check``: is everything there, without running anything long."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from sembench.exit_codes import REFUSED_BY_FIGURES
from sembench.laboratory.caches import SEMANTICS, make_cache, replay
from sembench.laboratory.config import load_experiment, shipped_experiments
from sembench.laboratory.workloads import WORKLOADS, generate
from sembench.schema import InputError
from semblend_core.eviction import POLICY_NAMES

FEW_REQUESTS = 12


def self_check() -> Iterator[str]:
    """A line for each thing that is in order; the first that is not is an InputError with exit code 1."""
    missing = [name for name in WORKLOADS if name not in shipped_experiments()]
    if missing:
        raise InputError(f"no experiment is shipped for the workload {missing[0]}", REFUSED_BY_FIGURES)
    for name in shipped_experiments():
        config = load_experiment(name)
        requests = generate(config.workload, FEW_REQUESTS, config.first_seed)
        if len(requests) != FEW_REQUESTS:
            raise InputError(f"{name}: {len(requests)} requests instead of {FEW_REQUESTS}", REFUSED_BY_FIGURES)
        yield f"experiment {name}: {config.workload}, {len(config.policies)} policies"
    requests = generate("low_memory_rag_stress", FEW_REQUESTS, 0)
    for policy in POLICY_NAMES:
        for semantics in SEMANTICS:
            cache = make_cache(policy, 8000, semantics=semantics)
            replay(requests, cache)
            cache.policy.check_integrity()
        yield f"policy {policy}: prefix, block and span cache"
    yield _figures()
    yield _http()


def _figures() -> str:
    if importlib.util.find_spec("matplotlib") is None:
        return "figures: not there, run `pip install 'sembench[laboratory]'`"
    return "figures: matplotlib is there"


def _http() -> str:
    if importlib.util.find_spec("fastapi") is None:
        return "HTTP: not there, run `pip install 'sembench[laboratory]'`"
    from sembench.laboratory.http import app

    return f"HTTP: {len(app.openapi()['paths'])} routes"
