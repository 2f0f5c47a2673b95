"""What the engine's steps take, learned from the steps themselves."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from semblend_core.costs.least_squares import LONGEST, are_sums_of_steps, non_negative
from semblend_core.costs.steps import FEATURES, FLAT_TOKENS, StepShape, Vector

MEMORY = 100.0
"""Steps of one kind after which an earlier one counts for little."""
ENOUGH_PREFILLS = 3
"""Steps with a part of a prompt before anything is predicted."""
MORE_PREFILLS = 1.25
"""So many times as many as at the last fit, and what prompts cost is worth another."""
LEAST_STEP_TOKENS = 2048
"""No engine's smallest step takes longer than so many tokens of a long prefill."""
ENOUGH_TOKENS = 128
"""Fewer say nothing of what a prompt costs."""
MOST_RESIDUALS = 64
MOST_NEW = 16
"""Steps that are learned from at once."""
LEAST_NOISE, MOST_NOISE = 0.02, 0.3
"""Relative. Where times are steadier, the shape of the model is what errs; where they are wilder, they still count."""
INFORMED = 0.3
"""Below this relative deviation a prediction says more about its step than the step about the costs."""
OUTLIER = 4.0
"""Beyond so many times what is to be expected a step says nothing of its shape: something else ran. So does one behind
another that takes as much less: its results had come, and nobody asked for them while somebody else was busy."""
SHORTEST = 1e-6
"""What an earlier process learned is believed between this and ``LONGEST``, in microseconds or what else it counts."""
WIDENED = 0.2
"""Weight of what an earlier process learned."""
MOST_KINDS = 512
MEMORY_OF_KIND = 9
UNSEEN = 0.25
"""Relative deviation of what is predicted for steps with reuse of a kind that nobody has seen, besides what the sum is
in doubt of: kernels are compiled for new shapes, and no sum over features holds everywhere."""
MOST_BY_ONE_STEP = 2.0
"""A single slow step of a kind makes others of it look slower by no more than this factor."""

# Before anything is measured, by feature: whether in units of a smallest step or of a token in a long prefill, the
# expected cost and its deviation. The costs of reuse are set high: a load costs a step. Those of a sequence are not: a
# claim may have hundreds, and what is expected to take several prefills is hardly ever tried.
# What is the same for all prefills belongs to the prompt until shorter ones say otherwise: a plan does not spare it.
_PRIOR: dict[str, tuple[bool, float, float]] = {
    "step": (True, 1.0, 1.0),
    "prompt": (True, 0.0, 8.0),
    "token": (False, 0.0, 1.0),
    "token_beyond_flat": (False, 0.0, 1.0),
    "beyond_flat": (True, 0.0, 0.5),
    "attention": (False, 0.0, 1 / 16384),
    "context": (False, 0.0, 1 / 256),
    "sequence": (True, 0.01, 0.05),
    "reuse": (True, 1.0, 1.0),
    "moved": (False, 0.1, 0.1),
    "correction": (True, 0.5, 0.5),
    "corrected": (False, 0.1, 0.1),
}
assert tuple(_PRIOR) == FEATURES


class StepTimes:
    """A sum over the features of a step, each with a cost of at least 0.

    Bayesian least squares of relative errors. What is known of a direction is forgotten only where new steps say
    something of the same direction, so that a thousand ordinary steps do not wash out what ten loads have taught. What
    the sum misses about steps of one kind is learned apart, as a factor for that kind. Times are in microseconds.
    """

    def __init__(self) -> None:
        size = len(FEATURES)
        self._known = np.zeros((size, size))
        """Information about the costs, in units of the noise."""
        self._seen = np.zeros(size)
        self._residuals: deque[float] = deque(maxlen=MOST_RESIDUALS)
        self._last: dict[tuple[int, ...], deque[tuple[Vector, float]]] = {}
        """By kind of step the last few, and what they took."""
        self._parts: dict[tuple[int, ...], None] = {}
        """Kinds of steps that were parts of others."""
        self._factors: dict[tuple[int, ...], float] = {}
        """What is known of them since the costs were last fitted."""
        self._odd: dict[tuple[int, ...], bool] = {}
        """Kinds whose last step took longer than could be expected, or shorter: whether it was longer."""
        self.prefills = 0
        """Steps with a part of a prompt, so far."""
        self._least_prompt = math.inf
        """What the fastest of them took."""
        self._knows_short_prompts = False
        """Whether one of them was so short that its tokens hardly count: it shows what the step itself takes."""
        self._least_step = self._token = math.inf
        self._new: list[tuple[StepShape, float, bool]] = []
        """Observed and not learned from."""
        self._costs: Vector | None = None
        self._last_costs: Vector | None = None
        """As they were last fitted."""
        self._learned_prefills = self._fitted_prefills = 0
        """Of ``prefills``, those that were learned from, and those that had been by then."""
        self._spread: Vector | None = None
        self._free: list[int] = list(range(size))
        """Features whose cost is above 0, as the last fit found."""

    @property
    def is_ready(self) -> bool:
        return self.prefills >= ENOUGH_PREFILLS

    def observe(self, shape: StepShape, took: float, *, overlapped: bool = False) -> None:
        """A step of this shape took so long, or longer if it ``overlapped`` with the one before it.

        Learned from later: many steps come between two questions.
        """
        if math.isfinite(took) and took > 0:
            self._new.append((shape, took, overlapped))
            self.prefills += _shows_prompts(shape)
            if len(self._new) >= MOST_NEW:
                self._learn()

    def observe_part(self, shape: StepShape) -> None:
        """Such a step was a part of a larger one, which was observed: what such steps do is not new any more."""
        self._parts[shape.kind] = None
        if len(self._parts) > MOST_KINDS:
            del self._parts[next(iter(self._parts))]

    def predict(self, shapes: Iterable[StepShape], *, hoping: bool = False) -> float:
        """What these steps take together. ``hoping``: short prompts, where none was seen, take what the sum says."""
        self._learn()
        return sum(self._expected(shape, hoping) for shape in shapes)

    def by_sum(self, shapes: Iterable[StepShape]) -> float:
        """What the sum over features alone says that these steps take, whatever was seen of their kinds."""
        self._learn()
        return sum(self._plain(shape.vector) for shape in shapes)

    def doubt(self, some: Sequence[StepShape], others: Sequence[StepShape], *, unseen: float = UNSEEN) -> float:
        """Standard deviation of the difference between what ``some`` steps and ``others`` take.

        ``unseen``: what is added for steps with reuse of a kind that was not seen, by what they take.
        """
        self._learn()
        shapes = [*some, *others]
        signs = [1.0] * len(some) + [-1.0] * len(others)
        of_sum = self._deviation(
            np.sum([sign * shape.vector for sign, shape in zip(signs, shapes, strict=True)], axis=0)
        )
        of_kinds = [self._doubt_of_kind(shape, unseen) for shape in shapes]
        return math.hypot(of_sum, *of_kinds)

    def cost(self, feature: str) -> float:
        """What one unit of ``feature`` costs."""
        self._learn()
        return float(self._fit()[FEATURES.index(feature)])

    def prefill(self, tokens: int) -> float:
        """What the first so many tokens of a prompt cost, without the steps that they share.

        By the costs that were fitted last, while few prefills have come since: every donor is priced, and a fit for
        each would be dear.
        """
        if self._last_costs is None or self.prefills > MORE_PREFILLS * self._fitted_prefills:
            self._learn()
            self._last_costs = self._fit()
        costs = {feature: float(cost) for feature, cost in zip(FEATURES, self._last_costs, strict=True)}
        return tokens * (costs["token"] + costs["token_beyond_flat"] + costs["attention"] * tokens / 2)

    # --- Kept between processes --------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        self._learn()
        return {
            "features": list(FEATURES),
            "known": self._known.tolist(),
            "seen": self._seen.tolist(),
            "noise": self._noise(),
            "least_step": self._least_step,
            "token": self._token,
            "prefills": self.prefills,
            "least_prompt": self._least_prompt,
            "knows_short_prompts": self._knows_short_prompts,
        }

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> StepTimes:
        """What an earlier process learned, with less certainty. Raises ValueError for what cannot be."""
        times = cls()
        known, seen = np.array(kept["known"], np.float64), np.array(kept["seen"], np.float64)
        scales = [float(kept[name]) for name in ("noise", "least_step", "token", "least_prompt")]
        if kept["features"] != list(FEATURES) or known.shape != times._known.shape or seen.shape != times._seen.shape:
            raise ValueError("it holds the costs of other features")
        if not are_sums_of_steps(known, seen) or not all(SHORTEST < each < LONGEST for each in scales):
            raise ValueError("it holds costs that cannot be")
        if not 0 <= int(kept["prefills"]) < LONGEST:
            raise ValueError("it counts prefills that cannot be")
        times._known, times._seen = known * WIDENED, seen * WIDENED
        noise, times._least_step, times._token, times._least_prompt = scales
        times._residuals.extend([noise] * (MOST_RESIDUALS // 8))
        times.prefills = times._learned_prefills = int(kept["prefills"])
        times._knows_short_prompts = kept["knows_short_prompts"] is True
        return times

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        new, self._new = self._new, []
        for shape, took, overlapped in new:
            x = shape.vector
            believable = self._believable(shape, x, took, overlapped) if self._known.any() else took
            self._note_kind(shape.kind, x, max(took, believable))
            took = believable
            self._note_scale(shape, took)
            self._forget_some(x)
            self._known += np.outer(x, x) / took**2
            self._seen += x / took
            self._learned_prefills += _shows_prompts(shape)
        if new:
            self._costs = self._spread = None
            self._factors.clear()

    def _believable(self, shape: StepShape, x: Vector, took: float, overlapped: bool) -> float:
        """``took``, or the most or least that may be expected of such a step. Notes how far off the prediction was."""
        predicted, kind = self._plain(x) * self._factor(shape), shape.kind
        unknown = math.hypot(self._deviation(x) / predicted, UNSEEN if self._is_new(shape) else 0.0)
        bound = 1 + OUTLIER * math.hypot(self._noise(), unknown)
        if unknown < INFORMED:  # Otherwise a miss is what was to be expected, and no noise.
            self._residuals.append(abs(took / predicted - 1))
        is_slow = took > predicted
        # What took too long was the steps before it: the first ones wait for compilations.
        is_surely_fast = not is_slow and not overlapped
        if is_surely_fast or predicted / bound <= took <= predicted * bound:
            self._odd.pop(kind, None)
            return took
        # Once it is an accident. Twice in a row it is what such steps take.
        was_the_same = self._odd.get(kind) is is_slow
        self._odd[kind] = is_slow
        if was_the_same:
            return took
        return predicted * bound if is_slow else predicted / bound

    def _note_scale(self, shape: StepShape, took: float) -> None:
        # Both creep upwards, so that one moment of good luck does not stay the measure for ever.
        self._least_step = min(self._least_step * 1.001, took)
        if _shows_prompts(shape):
            self._token = min(self._token * 1.01, took / shape.tokens)
        if shape.sequences:
            self._least_prompt = min(self._least_prompt * 1.001, took)
            self._knows_short_prompts |= shape.tokens <= FLAT_TOKENS

    def _forget_some(self, x: Vector) -> None:
        along = self._known @ x
        size = float(x @ along)
        if size > 0:
            self._known -= np.outer(along, along) / (size * MEMORY)
            self._seen -= along * (float(x @ self._seen) / (size * MEMORY))

    def _note_kind(self, kind: tuple[int, ...], x: Vector, took: float) -> None:
        last = self._last.pop(kind, None) or deque(maxlen=MEMORY_OF_KIND)
        last.append((x, took))
        self._last[kind] = last
        if len(self._last) > MOST_KINDS:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._odd.pop(oldest, None)

    def _noise(self) -> float:
        if not self._residuals:
            return 4 * LEAST_NOISE
        return min(MOST_NOISE, max(LEAST_NOISE, 1.48 * statistics.median_low(self._residuals)))

    def _factor(self, shape: StepShape) -> float:
        """What steps of this kind took by what the sum over features says; the fewer they are, the nearer to 1."""
        kind = shape.kind
        if kind not in self._factors:
            missed = [math.log(took / self._plain(x)) for x, took in self._last.get(kind, ())]
            if len(missed) == 1:  # It may have been an accident.
                missed = [min(missed[0], math.log(MOST_BY_ONE_STEP))]
            self._factors[kind] = math.exp(statistics.median_low(missed) * (1 - 0.5 ** len(missed))) if missed else 1.0
        return self._factors[kind]

    def _doubt_of_kind(self, shape: StepShape, unseen: float) -> float:
        """Where the sum and the few steps of this kind disagree, either may be wrong."""
        if self._is_new(shape):
            return unseen * self._plain(shape.vector)
        count = len(self._last.get(shape.kind, ()))
        return abs(self._factor(shape) - 1) * self._plain(shape.vector) / count if count else 0.0

    def _is_new(self, shape: StepShape) -> bool:
        """Whether nobody has seen such a step, and the sum over features alone says what its reuse takes."""
        return shape.reuses and not self.has_seen(shape.kind)

    def has_seen(self, kind: tuple[int, ...]) -> bool:
        """By itself, or as a part of a larger step."""
        return kind in self._last or kind in self._parts

    def _expected(self, shape: StepShape, hoping: bool) -> float:
        plain = self._plain(shape.vector)
        if shape.sequences and not (self._knows_short_prompts or hoping or self.has_seen(shape.kind)):
            # A few tokens may take as long as the shortest prompt so far. What reuse adds comes on top of that.
            least = min(self._least_prompt, LEAST_STEP_TOKENS * self._token)
            plain += max(0.0, least - self._plain(shape.without_reuse.vector))
        return plain * self._factor(shape)

    def _plain(self, x: Vector) -> float:
        return max(float(self._fit() @ x), 1e-3)

    def _fit(self) -> Vector:
        if self._costs is None:
            expected, deviation = self._prior()
            weight, certainty = deviation**-2, self._noise() ** -2
            precision = self._known * certainty + np.diag(weight)
            self._costs, self._free = non_negative(precision, self._seen * certainty + weight * expected, self._free)
            self._last_costs, self._fitted_prefills = self._costs, self._learned_prefills
        return self._costs

    def _deviation(self, x: Vector) -> float:
        if self._spread is None:
            _, deviation = self._prior()
            # In units of the deviations: the features are of very different sizes.
            scaled = self._known * self._noise() ** -2 * np.outer(deviation, deviation) + np.eye(deviation.size)
            self._spread = np.linalg.inv(scaled) * np.outer(deviation, deviation)
        return math.sqrt(max(0.0, float(x @ self._spread @ x)))

    def _prior(self) -> tuple[Vector, Vector]:
        """Expected costs, and their deviations."""
        token = min(self._token, self._least_step)
        # Where all steps so far were long ones, the least of them is far from a smallest step.
        step = min(self._least_step, LEAST_STEP_TOKENS * token)
        units = np.array([step if in_steps else token for in_steps, _, _ in _PRIOR.values()])
        expected = np.array([mean for _, mean, _ in _PRIOR.values()])
        deviation = np.array([deviation for _, _, deviation in _PRIOR.values()])
        return units * expected, units * deviation


def _shows_prompts(shape: StepShape) -> bool:
    """Whether it tells what a prompt's tokens take. Many sequences that decode have as many tokens, and do not."""
    return bool(shape.sequences) and shape.tokens >= ENOUGH_TOKENS and not shape.reuses
