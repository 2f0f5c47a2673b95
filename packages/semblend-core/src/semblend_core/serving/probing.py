"""Rows that are chosen by where the question looks, in two steps.

A first step computes what no span covers, the question too, over relocated KV. The engine's attention shows where the
question looks. By that the tier's policy chooses rows. A second step computes them, with all that the first computed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NoReturn

from semblend_core.contract import Plan, ProbeEnd
from semblend_core.recompute import Pooling, Recompute, Scores, TierChoice, choose_policy
from semblend_core.settings import QualityTier, Settings

logger = logging.getLogger(__name__)

MOST_QUESTION_TOKENS = 128
"""Whose attention is scored: the last of the prompt."""
POOLING: Pooling = "peaks"
"""A token counts by the most that each head pays to it from any of them. So what ranks saw with their heads adds up."""
PROBED_RUN = 4
"""Tokens that engines choose at a time: each row is a sequence of the batch, which costs as much as some tokens."""
LONGEST_RUN = 256
"""That is chosen where there is room for few rows."""
MOST_FAILED_PROBES = 3
"""In a row. Each has cost its request a step."""


@dataclass(frozen=True, slots=True, eq=False)
class Probing:
    """What the first step computes and shows, and how rows are chosen by it. Immutable."""

    plan: Plan
    """It computes gaps only."""
    choice: TierChoice
    layers: range
    """Whose attention is scored."""
    model_layers: int
    block: int = 1
    """Rows are chosen in runs of so many tokens, or longer ones."""
    join_within: int = 0
    """Rows with at most so many tokens between them are to become one."""

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """Runs of tokens that the first step computes, the question last."""
        return tuple((row.start, row.end) for row in self.plan.rows)

    @property
    def question(self) -> tuple[int, int]:
        """[start, end) of the tokens whose queries are scored."""
        last = self.plan.rows[-1]
        return max(last.start, last.end - MOST_QUESTION_TOKENS), last.end

    def decide(self, scores: Scores, run: int) -> Recompute:
        """Rows in runs of so many tokens.

        ``scores`` [tokens up to the question's end]: how much the question attends to each.
        """
        seen = _Seen(self.model_layers, scores)
        return self.choice.policy.plan(self.plan, budget=self.choice.budget, probe=seen, block=run)


def probing_of(
    plan: Plan,
    tier: QualityTier,
    *,
    limit: float | None,
    model_layers: int,
    block: int = 1,
    join_within: int = 0,
    spending: float = 1.0,
) -> Probing | None:
    """How a tier chooses rows of ``plan``, which computes gaps only, by a probe; None where it needs or pays none."""
    choice = choose_policy(tier, plan, probing=True, limit=limit, spending=spending)
    if choice is None or not choice.policy.needs_probe:
        return None
    try:
        choice.policy.plan(plan, budget=choice.budget, probe=_Asked(model_layers), block=block)
    except _ScoresWanted as wanted:
        return Probing(plan, choice, wanted.layers, model_layers, block, join_within)
    except NotImplementedError:
        return None  # It wants to see what engines do not show.
    return None  # The probe alone would cost all that the tier may spend.


class ProbeTrust:
    """Whether an engine goes on probing: not where it is switched off, nor behind several that have shown nothing."""

    def __init__(self, settings: Settings) -> None:
        self._wanted, self._failed = settings.probe == "auto", 0

    @property
    def is_on(self) -> bool:
        return self._wanted and self._failed < MOST_FAILED_PROBES

    def ended(self, end: ProbeEnd) -> None:
        if not self.is_on:
            return  # Of one that was under way when they were given up.
        self._failed = self._failed + 1 if end is ProbeEnd.FAILED else 0
        if self._failed == MOST_FAILED_PROBES:
            logger.warning("no more probes: %d in a row have shown nothing", MOST_FAILED_PROBES)


class _EngineProbe:
    """A policy's ``Probe`` in an engine, whose steps always go through all layers."""

    def __init__(self, layers: int) -> None:
        self.layers = layers

    def cost(self, layers: int) -> float:
        return 1.0

    def question_attention(self, layers: range, pooling: Pooling = POOLING) -> Scores:
        if pooling != POOLING:
            raise NotImplementedError(f"engines score by the {POOLING} of the question's attention only")
        return self._scores(layers)

    def _scores(self, layers: range) -> Scores:
        raise NotImplementedError

    def kv_deviation(self, layers: int) -> Scores:
        raise NotImplementedError("engines score by the question's attention only")

    def true_deviation(self) -> Scores:
        raise NotImplementedError("only a study knows the truth")


class _ScoresWanted(Exception):  # noqa: N818 - not an error: how a policy says which layers it would look at
    def __init__(self, layers: range) -> None:
        self.layers = layers


class _Asked(_EngineProbe):
    def _scores(self, layers: range) -> NoReturn:
        raise _ScoresWanted(layers)


class _Seen(_EngineProbe):
    def __init__(self, layers: int, scores: Scores) -> None:
        super().__init__(layers)
        self._seen = scores

    def _scores(self, layers: range) -> Scores:
        return self._seen
