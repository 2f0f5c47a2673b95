"""A prefill with reuse under a recompute policy: place, probe, choose, correct and compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semblend_core.contract import Plan, TokenIds
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.learned_shift import LearnedShift
from semblend_core.kv.mean_shift import MeanShiftCorrection
from semblend_core.kv.row_shift import middle_layer
from semblend_core.recompute import Recompute, RecomputePolicy
from semblend_core.reference.attention import Observation
from semblend_core.reference.engine import ReferenceEngine, row_positions, tokens_of_plan
from semblend_core.reference.prefill import Prefill
from semblend_core.reference.probing import EngineProbe
from semblend_core.reference.workspace import Workspace


@dataclass(frozen=True, slots=True, eq=False)
class ReusingPrefill:
    prefill: Prefill
    """Its seconds include placing, probing and choosing."""
    recompute: Recompute
    """What the policy decided."""


def prefill_reusing(
    engine: ReferenceEngine,
    token_ids: Sequence[int] | TokenIds,
    plan: Plan,
    donors: Mapping[str, DonorKv],
    policy: RecomputePolicy,
    budget: float,
    *,
    exact_prefix: DonorKv | Workspace | None = None,
    block: int = 1,
    room: int = 256,
    truth: tuple[Prefill, TokenIds] | None = None,
    whole_steps: bool = False,
    learned: LearnedShift | None = None,
) -> ReusingPrefill:
    """Carry out ``plan``, which computes gaps only, with what ``policy`` adds to it for at most ``budget``.

    ``truth``: the cold prefill and its continuation, for the oracle of a study. ``whole_steps``: charge probes as in
    an engine that cannot stop at a layer. ``learned``: what was fitted for this model; None: what the engine found.
    """
    tokens = tokens_of_plan(token_ids, plan)
    with engine.timed() as elapsed:
        workspace = engine.place_plan(plan, donors, exact_prefix=exact_prefix, room=room)
        probe = None
        if policy.needs_probe:
            probe = EngineProbe(engine, workspace, tokens, plan, truth=truth, whole_steps=whole_steps)
        decided = policy.plan(plan, budget=budget, probe=probe, block=block)
        rows = row_positions(decided.plan)
        correct = _correcting(engine, workspace, decided, rows, learned)
        logits = engine.compute(workspace, tokens[rows], rows, observer=correct)
    assert logits is not None
    return ReusingPrefill(Prefill.of_plan(decided.plan, tokens, workspace, logits, elapsed()), decided)


def _correcting(
    engine: ReferenceEngine,
    workspace: Workspace,
    decided: Recompute,
    rows: NDArray[np.int64],
    learned: LearnedShift | None,
) -> Callable[[Observation], None] | None:
    if decided.correction is None:
        return None
    middle = middle_layer(engine.geometry.layers)
    correction = MeanShiftCorrection(
        decided.correction,
        decided.plan.spans,
        rows,
        engine.rotation,
        (workspace.keys[middle], workspace.values[middle]),
        learned or engine.learned,
    )

    def correct(seen: Observation) -> None:
        # Observed KV is a view of the workspace: what changes here is what the layer attends to.
        correction.apply(
            seen.layer,
            seen.keys.transpose(0, 1),
            seen.values.transpose(0, 1),
            seen.replaced_keys.transpose(0, 1),
            seen.replaced_values.transpose(0, 1),
        )

    return correct
