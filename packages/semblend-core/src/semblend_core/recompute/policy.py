"""The one interface of all recompute policies, and what they may ask an engine to measure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from semblend_core.contract import Plan
from semblend_core.recompute.reuse import Mask, Reuse


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """One measurement of a probe: how much each prompt position matters, and what it cost to learn that."""

    values: npt.NDArray[np.floating]
    """[prompt tokens], larger is more; positions that are not reused are ignored."""
    token_layers: float
    """Tokens times layers that the measurement computed."""
    layers: int
    """The model's layers."""
    layers_done: int = 0
    """First layers that the measurement computed for every reused token, which need not be computed again."""

    @property
    def cost_tokens(self) -> float:
        """The cost in tokens computed through all layers."""
        return self.token_layers / self.layers


class Probe(Protocol):
    """What an engine measures for a policy before the prefill, over donor KV that is already in place."""

    @property
    def layers(self) -> int:
        """The model's layers."""

    def question_attention(self, first: float, last: float) -> Scores:
        """Attention of the question to each position, over the layers from ``first`` to ``last`` (shares of depth)."""

    def kv_deviation(self, layers: int) -> Scores:
        """How far V strays from the truth in the last of the first ``layers``, all reused tokens computed through."""

    def true_deviation(self) -> Scores:
        """Attention of what follows times the true deviation. Needs the cold KV: for studies only, and free."""


@dataclass(frozen=True, slots=True)
class MeanShift:
    """Correct the tokens that are not recomputed by the mean change of those of their span that are.

    Layer by layer, in the forward that computes the rows: K in the frame of position 0, V as it is.
    """

    strength: float = 0.5
    """Share of the mean change that is applied. Rows are chosen where the change is large, so less than 1 is right."""
    min_rows: int = 4
    """Spans with fewer recomputed tokens are left as they are."""

    def __post_init__(self) -> None:
        if not 0 < self.strength <= 1 or self.min_rows < 1:
            raise ValueError(f"strength must be in (0, 1] and min_rows at least 1, got {self}")


@dataclass(frozen=True, slots=True)
class Recompute:
    """A policy's decision for one request."""

    plan: Plan
    """The plan with the policy's rows."""
    recomputed_tokens: int
    """Reused tokens that are computed after all."""
    probe_tokens: float
    """What probes cost, in tokens computed through all layers."""
    reused_tokens: int
    """Tokens the plan would have reused without the policy."""
    correction: MeanShift | None = None

    @property
    def share(self) -> float:
        """Everything computed beyond the gaps, probes included, by what could have been reused."""
        return (self.recomputed_tokens + self.probe_tokens) / max(1, self.reused_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The reused tokens to compute."""

    chosen: Mask
    seams: Mask | None = None
    """Which of them are seams; None: none."""
    probe_tokens: float = 0.0
    saved_tokens: float = 0.0
    """Work of the probe that the prefill does not repeat, in tokens."""
    correction: MeanShift | None = None


class RecomputePolicy(ABC):
    """Which tokens of a plan's spans are computed afresh. Stateless: one policy serves all requests and threads."""

    @property
    @abstractmethod
    def name(self) -> str:
        """As the quality study and the telemetry call it."""

    @abstractmethod
    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        """Choose for at most ``tokens`` tokens, the cost of probes included."""

    @property
    def needs_probe(self) -> bool:
        """Whether ``plan`` must be given a probe; if not, the rows are known before any forward."""
        return False

    def plan(self, plan: Plan, *, budget: float, probe: Probe | None = None, block: int = 1) -> Recompute:
        """Add rows to ``plan``, which computes gaps only, for at most ``budget`` (share of its reused tokens).

        ``block``: choose whole runs of so many tokens, for engines that compute no less at a time.
        """
        if not 0 <= budget <= 1:
            raise ValueError(f"budget is a share of the reused tokens, in [0, 1], got {budget}")
        if block < 1:
            raise ValueError(f"block is a number of tokens, at least 1, got {block}")
        if self.needs_probe and probe is None:
            raise ValueError(f"{self.name} chooses by what an engine measures: pass probe=")
        reuse = Reuse(plan)
        selection = self.select(reuse, budget * reuse.tokens, probe, block)
        seams = np.zeros_like(reuse.reused) if selection.seams is None else selection.seams
        chosen = selection.chosen & reuse.reused
        return Recompute(
            plan=reuse.with_recomputed(chosen, seams),
            recomputed_tokens=int(chosen.sum()),
            probe_tokens=selection.probe_tokens - selection.saved_tokens,
            reused_tokens=reuse.tokens,
            correction=selection.correction,
        )


class Corrected(RecomputePolicy):
    """Another policy's rows, and the rest of each span corrected by their mean shift."""

    def __init__(self, policy: RecomputePolicy, correction: MeanShift | None = None) -> None:
        self._policy = policy
        self._correction = correction or MeanShift()

    @property
    def name(self) -> str:
        return f"{self._policy.name}+mean_shift"

    @property
    def needs_probe(self) -> bool:
        return self._policy.needs_probe

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        return replace(self._policy.select(reuse, tokens, probe, block), correction=self._correction)


def best(values: npt.NDArray[np.floating], available: Mask, count: int, block: int = 1) -> Mask:
    """The ``count`` best of the available positions, or as many whole blocks as that allows. Ties: earlier first."""
    chosen = np.zeros(available.size, np.bool_)
    candidates = np.flatnonzero(available)
    if count <= 0 or not candidates.size:
        return chosen
    if block == 1:
        order = np.argsort(-values[candidates], kind="stable")[:count]
        chosen[candidates[order]] = True
        return chosen
    block_of = candidates // block
    totals = np.bincount(block_of, weights=values[candidates])
    sizes = np.bincount(block_of)
    means = np.where(sizes > 0, totals / np.maximum(sizes, 1), -np.inf)
    order = np.argsort(-means, kind="stable")[: int((sizes > 0).sum())]
    taken = order[np.cumsum(sizes[order]) <= count]
    chosen[candidates[np.isin(block_of, taken)]] = True
    return chosen


def shortened(mask: Mask, tokens: float) -> Mask:
    """``mask`` if it fits, else its first positions of each run, equally long, as far as they fit."""
    limit = int(tokens)
    if int(mask.sum()) <= limit:
        return mask
    positions = np.flatnonzero(mask)
    first = np.ones(positions.size, np.bool_)
    first[1:] = np.diff(positions) > 1
    run_start = np.maximum.accumulate(np.where(first, np.arange(positions.size), 0))
    place = np.arange(positions.size) - run_start
    order = np.argsort(place, kind="stable")[:limit]
    kept = np.zeros_like(mask)
    kept[positions[order]] = True
    return kept
