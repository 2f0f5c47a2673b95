"""The one interface of all recompute policies, and what they may ask an engine to measure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from semblend_core.contract import Plan
from semblend_core.recompute.reuse import Mask, Reuse, tokens_in
from semblend_core.recompute.runs import Runs

Scores: TypeAlias = npt.NDArray[np.floating]
"""[prompt tokens], larger matters more. Positions that are not reused are ignored."""
Pooling: TypeAlias = Literal["mean", "peaks"]
"""What one position's score makes of the attention that many heads and question tokens pay to it: their mean, or the
most that each head pays from any token, added up over heads."""


class Probe(Protocol):
    """What an engine measures for a policy before the prefill, over donor KV that is already in place."""

    @property
    def layers(self) -> int:
        """The model's layers."""

    def cost(self, layers: int) -> float:
        """What one token computed through the first ``layers`` costs, by the cost of all layers.

        Where a measurement can stop as the last of them attends, that one counts with its projections only. An engine
        whose steps always run through the whole model says 1, whatever the layers.
        """

    def question_attention(self, layers: range, pooling: Pooling) -> Scores:
        """Attention of the question to each position, pooled over heads and question tokens, added up over ``layers``.

        Computes the plan's rows through the last of them.
        """

    def kv_deviation(self, layers: int) -> Scores:
        """How far V strays from the truth in the last of the first ``layers``, computed for all reused tokens."""

    def true_deviation(self) -> Scores:
        """Attention of what follows times the true deviation. Needs the cold KV: for studies only, and free."""


@dataclass(frozen=True, slots=True)
class MeanShift:
    """Correct the tokens that are not recomputed by the mean change of those of their span that are.

    Layer by layer, in the forward that computes the rows: K in the frame of position 0, V as it is. The mean is the
    same for a whole span, unless ``reach`` and ``likeness`` weigh the rows anew for each token.
    """

    strength: float = 0.5
    """Share of the mean change of K that is applied. Rows are chosen where the change is large: less than 1 is right.
    """
    min_rows: int = 4
    """Spans with fewer recomputed tokens are left as they are."""
    value_strength: float | None = None
    """The same for V, of which less is common to a span. None: as for K."""
    reach: float | None = None
    """Rows count less by a factor of e with each so many tokens between. None: all alike, near or far."""
    likeness: float = 0.0
    """Rows count more by a factor of e to this, the more alike their relocated K and V are to the token's (cosine)."""
    learned: bool = False
    """Take what was fitted for these weights in place of the strengths, where such a file is found."""

    def __post_init__(self) -> None:
        if not 0 < self.strength <= 1 or not 0 <= self.of_values <= 1 or self.min_rows < 1:
            raise ValueError(f"strengths must be in (0, 1] and min_rows at least 1, got {self}")
        if self.likeness < 0 or (self.reach is not None and self.reach <= 0):
            raise ValueError(f"reach must be above 0 and likeness at least 0, got {self}")
        if self.learned and not self.weighs_rows:
            raise ValueError(f"what is learned goes on from rows that are weighed: give reach or likeness, got {self}")

    @property
    def name(self) -> str:
        if self.learned:
            return "learned_shift"
        return "row_shift" if self.weighs_rows else "mean_shift"

    @property
    def of_values(self) -> float:
        """Share of the mean change of V that is applied."""
        return self.strength if self.value_strength is None else self.value_strength

    @property
    def weighs_rows(self) -> bool:
        """Whether each token has a mean of its own."""
        return self.reach is not None or self.likeness > 0

    @property
    def is_plain(self) -> bool:
        """Whether one mean and one strength do for all of a span: what the kernel knows."""
        return not self.weighs_rows and self.of_values == self.strength


@dataclass(frozen=True, eq=False)
class Recompute:
    """A policy's decision for one request."""

    reuse: Reuse
    chosen: Mask
    """Reused tokens that are computed after all."""
    seams: Mask
    """Which of them are seams."""
    probe_tokens: float
    """What probes cost, in tokens computed through all layers."""
    correction: MeanShift | None = None

    @cached_property
    def plan(self) -> Plan:
        """The plan with the policy's rows. It is made when asked for: a search asks for the last decision's only."""
        return self.reuse.with_recomputed(self.chosen, self.seams)

    @cached_property
    def computed(self) -> Runs:
        """All that ``plan`` computes. Rows that touch are one."""
        return Runs.of(self.reuse.gaps | self.chosen)

    @property
    def recomputed_tokens(self) -> int:
        return tokens_in(self.chosen)

    @property
    def reused_tokens(self) -> int:
        """Tokens the plan would have reused without the policy."""
        return self.reuse.tokens

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

    @property
    def longest_seam(self) -> int | None:
        """Tokens at the front of one span that it computes at most. None: as many as its budget allows."""
        return None

    def spending(self, times: float) -> RecomputePolicy:
        """The same policy for a budget so many times as large. One that spends what it has is the same."""
        return self

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
        probe_tokens = selection.probe_tokens - selection.saved_tokens
        return Recompute(reuse, selection.chosen & reuse.reused, seams, probe_tokens, selection.correction)


class Corrected(RecomputePolicy):
    """Another policy's rows, and the rest of each span corrected by their mean shift."""

    def __init__(self, policy: RecomputePolicy, correction: MeanShift | None = None) -> None:
        self._policy = policy
        self._correction = correction or MeanShift()

    @property
    def rows(self) -> RecomputePolicy:
        """The policy that chooses the rows."""
        return self._policy

    @property
    def name(self) -> str:
        return f"{self._policy.name}+{self._correction.name}"

    @property
    def needs_probe(self) -> bool:
        return self._policy.needs_probe

    def spending(self, times: float) -> RecomputePolicy:
        return Corrected(self._policy.spending(times), self._correction)

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        return replace(self._policy.select(reuse, tokens, probe, block), correction=self._correction)
