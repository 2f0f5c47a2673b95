"""Which cells the study has, and which arms it runs on a case: tiers, rivals, and any policy that core knows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

import semblend_core.recompute as recompute
from quality_data.cases import FACT_TRANSFORMS, MAIN_TRANSFORMS, TRANSFORMS, passages_of
from semblend_core import Plan, Span
from semblend_core.recompute import RecomputePolicy, choose_policy
from semblend_core.serving import PROBED_RUN
from semblend_core.settings import QualityTier

CURVE_BUDGETS = (0.01, 0.02, 0.05, 0.08, 0.10, 0.15, 0.20, 0.30, 0.40)
"""Beside 0 and 1, where all policies are the same."""
TIERS: tuple[QualityTier, ...] = get_args(QualityTier)
UNPROBED = "_unprobed"
"""Behind a tier's name: as an engine without a probe runs it."""
IN_RUNS = re.compile(r"_in_runs(?:_of_(\d+))?$")
"""Behind a tier's name: with a probe, and rows in runs of tokens, as engines choose them."""
RIVALS = {"CacheBlend's rule": "kv_deviation", "EPIC's rule": "seam_head"}
POLICIES = {
    "rotate_only": "RotateOnly()",
    "full_recompute": "FullRecompute()",
    "random": "Random()",
    "seam_head": "SeamHead()",
    "shared_sink": "SharedSink()",
    "seam_and_tail": "SeamAndTail()",
    "seam_head+mean_shift": "Corrected(SeamHead())",
    "kv_deviation": "KVDeviation()",
    "query_attention": "QueryAttention()",
    "seam_head+query_attention": "QueryAttention(seam=16)",
    "seam_head+query_attention+mean_shift": "Corrected(QueryAttention(seam=16))",
    "oracle": "Oracle()",
    "oracle+mean_shift": "Corrected(Oracle())",
}
"""Names for policies. An arm may also be an expression over the names of ``semblend_core.recompute`` itself."""
JUDGED_ARMS = ("balanced", "balanced_in_runs", "balanced_unprobed")
"""The tier on the reference engine, in engines, and in engines where a probe does not pay."""
TIER_ARMS = ("rotate_only", "fast", *JUDGED_ARMS)
BAR_ARMS = (*TIER_ARMS, "kv_deviation", "seam_head", "oracle+mean_shift")
BAR_TRANSFORMS = ("composite_10", "reorder_10", "instruction_variant", *FACT_TRANSFORMS)
ALL_ARMS = (*TIER_ARMS, *(name for name in POLICIES if name not in ("rotate_only", "full_recompute")))
CURVE_ARMS = (
    *("balanced", "balanced_unprobed", "random", "seam_head", "kv_deviation", "oracle+mean_shift"),
    *("seam_head+query_attention+mean_shift", "seam_head+mean_shift"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One transform of prompts of one length: what a figure stands for."""

    transform: str
    prompt_tokens: int
    cases: int
    arms: tuple[str, ...]
    """As ``--arms`` names them: ``balanced``, ``seam_head``, ``SeamHead(40)@0.08``."""
    first_case: int = 0
    curve_cases: int = 0
    """Cases on which every arm of the curve runs at every budget."""

    @property
    def name(self) -> str:
        return f"{self.transform}@{self.prompt_tokens}"


@dataclass(frozen=True, slots=True)
class Trial:
    key: str
    """The arm and its budget: ``balanced@tier``, ``seam_head@0.15``."""
    budget: float
    policy: RecomputePolicy
    answer: bool = False
    """Also decode an answer, token by token: for what may be served, not for controls and rivals."""
    whole_steps: bool = True
    """Probes are charged as engines pay them, which cannot stop at a layer."""
    run: int = 1
    """Rows are chosen in runs of so many tokens."""


def bar_cells(cases: int, first_case: int, arms: Sequence[str] = ()) -> list[Cell]:
    """The cells that the project's bars are about, with further arms."""
    return [Cell(transform, 6000, cases, (*BAR_ARMS, *arms), first_case) for transform in BAR_TRANSFORMS]


def grid_cells(
    lengths: Sequence[int],
    transforms: Sequence[str],
    cases: int,
    first_case: int,
    curve_cases: int,
    arms: Sequence[str],
) -> list[Cell]:
    cells = []
    for tokens in lengths:
        for transform in transforms:
            main = transform in MAIN_TRANSFORMS
            # Half of the entity swaps leave nothing worth loading.
            wanted = 2 * cases if transform == "entity_swap" else cases
            chosen = tuple(arms) or (ALL_ARMS if main else TIER_ARMS)
            cells.append(Cell(transform, tokens, wanted, chosen, first_case, curve_cases if main else 0))
    return cells


def equal_budget(transform: str, prompt_tokens: int) -> float:
    """The budget at which policies are compared: what the balanced tier may spend on this transform."""
    count = passages_of(transform, prompt_tokens)
    length = prompt_tokens // count
    plan = Plan.over("r", length * count + 1, 0, [Span(length * n, f"donor-{n}", 0, length) for n in range(count)])
    choice = choose_policy("balanced", plan)
    assert choice is not None
    return choice.budget


def trials(cell: Cell, plan: Plan, number: int) -> Iterator[Trial]:
    """What to run on case ``number`` of a cell; each key once."""
    seen: set[str] = set()
    for trial in _with_repeats(cell, plan, number):
        if trial.key not in seen:
            seen.add(trial.key)
            yield trial


def _with_repeats(cell: Cell, plan: Plan, number: int) -> Iterator[Trial]:
    for arm in cell.arms:
        trial = trial_of(arm, plan, equal_budget(cell.transform, cell.prompt_tokens))
        if trial is not None:
            yield trial
    if number < cell.first_case + cell.curve_cases:
        for arm in CURVE_ARMS:
            for budget in CURVE_BUDGETS:
                trial = trial_of(f"{arm}@{budget:g}", plan, budget)
                assert trial is not None
                yield trial
    if number < cell.first_case + 2:
        yield Trial("full_recompute@1", 1.0, policy_of("full_recompute"))


def trial_of(arm: str, plan: Plan, budget: float) -> Trial | None:
    """None: a tier that declines this plan."""
    name, at, limit = arm.rpartition("@") if "@" in arm else (arm, "", "")
    tier = tier_of(name)
    if tier is not None:
        choice = choose_policy(tier, plan, probing=not name.endswith(UNPROBED))
        if choice is None:
            return None
        budget = float(limit) if at else choice.budget
        in_runs = IN_RUNS.search(name) if choice.policy.needs_probe else None
        run = int(in_runs[1] or PROBED_RUN) if in_runs else 1
        return Trial(f"{name}@{limit or 'tier'}", budget, choice.policy, answer=not at, run=run)
    if name == "rotate_only":
        return Trial("rotate_only@0", 0.0, policy_of(name), answer=True)
    budget = float(limit) if at else budget
    policy = policy_of(name)
    # CacheBlend looks at all tokens through two layers: whole steps of that would be a prefill.
    by_layers = isinstance(policy, recompute.KVDeviation)
    return Trial(f"{name}@{budget:g}", budget, policy, answer=name not in POLICIES, whole_steps=not by_layers)


def tier_of(name: str) -> QualityTier | None:
    """The tier that an arm runs, in whatever way. None: the arm is a policy."""
    bare = IN_RUNS.sub("", name.removesuffix(UNPROBED))
    return next((tier for tier in TIERS if tier == bare), None)


def policy_of(name: str) -> RecomputePolicy:
    """By its name here, or by an expression such as ``Corrected(QueryAttention(seam=40))``."""
    known = {each: getattr(recompute, each) for each in recompute.__all__}
    try:
        policy = eval(POLICIES.get(name, name), {"__builtins__": {}}, known)
    except Exception as error:
        raise SystemExit(
            f"--arms: {name!r} is no tier, none of {', '.join(POLICIES)}, and no policy: {error}"
        ) from error
    if isinstance(policy, type):
        policy = policy()
    if not isinstance(policy, RecomputePolicy):
        raise SystemExit(f"--arms: {name!r} is no recompute policy")
    return policy


def check_arms(arms: Sequence[str]) -> None:
    """Fails early, before a model is loaded."""
    for arm in arms:
        name = arm.rpartition("@")[0] if "@" in arm else arm
        if tier_of(name) is None:
            policy_of(name)


__all__ = ["TRANSFORMS", "Cell", "Trial", "bar_cells", "check_arms", "equal_budget", "grid_cells", "trials"]
