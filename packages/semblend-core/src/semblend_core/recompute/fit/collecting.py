"""Requests through the reference engine: what a fit learns from, and what it is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.learned_shift import LearnedShift, inputs_of
from semblend_core.kv.row_shift import LARGEST_CHANGE, RowShift, middle_layer
from semblend_core.recompute import Corrected, MeanShift, RecomputePolicy, choose_policy
from semblend_core.recompute.fit.equations import Equations
from semblend_core.recompute.fit.requests import Request, RequestMaker
from semblend_core.reference.attention import Observation
from semblend_core.reference.engine import ReferenceEngine, row_positions
from semblend_core.reference.prefill import Prefill
from semblend_core.reference.probing import EngineProbe
from semblend_core.reference.reusing import prefill_reusing


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One request with the truth beside it."""

    request: Request
    donors: dict[str, DonorKv]
    cold: Prefill
    probed: bool
    """Whether its rows are chosen by a probe: engines have both."""


def samples(engine: ReferenceEngine, maker: RequestMaker, room: int) -> Iterator[Sample]:
    """Endlessly; each round's donors are computed once."""
    number = 0
    for made in maker.rounds():
        donors = {
            name: engine.capture(engine.prefill(tokens, room=0).workspace, tokens.size)
            for name, tokens in made.donors.items()
        }
        for request in made.requests:
            yield Sample(request, donors, engine.prefill(request.tokens, room=room), probed=number % 2 == 0)
            number += 1


def policy_of(sample: Sample, shift: MeanShift) -> tuple[RecomputePolicy, float]:
    """The balanced tier's rows, corrected by ``shift``."""
    choice = choose_policy("balanced", sample.request.plan, probing=sample.probed)
    assert choice is not None
    policy = choice.policy
    return Corrected(policy.rows if isinstance(policy, Corrected) else policy, shift), choice.budget


def learn_from(engine: ReferenceEngine, sample: Sample, shift: MeanShift, equations: Equations) -> None:
    """Carry out one request as it is served without a fit, and add what each layer shows to ``equations``."""
    request = sample.request
    workspace = engine.place_plan(request.plan, sample.donors)
    policy, budget = policy_of(sample, shift)
    probe = EngineProbe(engine, workspace, request.tokens, request.plan, whole_steps=True)
    decided = policy.plan(request.plan, budget=budget, probe=probe if policy.needs_probe else None)
    rows = row_positions(decided.plan)
    middle = middle_layer(engine.geometry.layers)
    relocated = workspace.keys[middle], workspace.values[middle]
    moving = RowShift(shift, request.plan.spans, rows, engine.rotation, relocated)
    true = sample.cold.workspace

    def learn(seen: Observation) -> None:
        kv = [each.transpose(0, 1) for each in (seen.keys, seen.values, seen.replaced_keys, seen.replaced_values)]
        found = moving.look(*kv)
        truth = moving.in_front(true.keys[seen.layer], true.values[seen.layer])
        inputs, change = inputs_of(found, moving.places), truth - found.own
        # A token that became a sink, or ceased to be one, is no example for others.
        length = change.flatten(1).square().sum(1).sqrt().clamp(min=1e-9)
        weight = (LARGEST_CHANGE * length.mean() / length).clamp(max=1)[:, None, None]
        equations.add(seen.layer, inputs * weight, change * weight)
        moving.move(seen.layer, kv[0], kv[1], found)

    if moving.anything:
        engine.compute(workspace, request.tokens[rows], rows, logits="none", observer=learn)


class Judge:
    """Divergence from cold on requests that no fit has seen, by forced text."""

    def __init__(self, engine: ReferenceEngine, continuation: int) -> None:
        self._engine, self._continuation = engine, continuation

    def divergence(self, sample: Sample, shift: MeanShift, learned: LearnedShift | None) -> float:
        """Mean KL over the cold continuation, in nats."""
        engine, request = self._engine, sample.request
        forced = engine.decode(sample.cold, self._continuation, stop_ids=())
        truth = engine.score(sample.cold, forced).log_softmax(-1)
        policy, budget = policy_of(sample, shift)
        reused = prefill_reusing(
            engine, request.tokens, request.plan, sample.donors, policy, budget, whole_steps=True, learned=learned
        )
        found = engine.score(reused.prefill, forced).log_softmax(-1)
        return float((truth.exp() * (truth - found)).sum(-1).mean())
