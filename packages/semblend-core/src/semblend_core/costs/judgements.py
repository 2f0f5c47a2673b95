"""What was predicted for a request, held against what its steps took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from semblend_core.contract import DeclineReason, Namespace
from semblend_core.costs.lookups import Lookup
from semblend_core.costs.step_clock import Step
from semblend_core.costs.steps import Kind, Part, StepShape
from semblend_core.telemetry import AuditSink, CostsCompared

MOST_OPEN = 1024
"""Requests. One that was aborted before its prompt was computed is told of when it is the oldest, unmeasured."""


class SharedStep(NamedTuple):
    """What a request and others did in one step. Looked at when nobody waits for the step's results."""

    parts: Sequence[Part]
    """The request's own."""
    moved: int
    """For it."""
    whole: StepShape
    microseconds: float

    @property
    def own(self) -> StepShape:
        whole = self.whole
        corrected = whole.corrected * self.moved // whole.moved if whole.moved else whole.corrected
        return StepShape.of(self.parts, moved=self.moved, corrected=corrected)


@dataclass(slots=True)
class Judgement:
    """In microseconds."""

    request_id: str
    namespace: Namespace
    prompt_tokens: int
    exact_prefix_tokens: int
    reason: DeclineReason | None
    """Why nothing is reused; None: it is."""
    trial_of: Kind | None
    """It is served as it is in order to learn what such steps take; None: it is no trial."""
    cold: float
    reuse: float
    doubt: float
    """Standard deviation of the difference."""
    lookup: Lookup
    waiting: float = 0.0
    """Of ``reuse``: until its donors have come."""
    forecast: Sequence[StepShape] = ()
    """The steps that ``reuse`` was predicted for."""
    looking: float = 0.0
    """What its lookup, this judgement and what else was done for a claim took, before any step."""
    measured: float = 0.0
    waited: float = 0.0
    """Of ``measured``: for its donors."""
    steps: int = 0
    reused: bool = False
    """Relocated KV was in its steps."""
    beside_prompts: bool = False
    """A part of another prompt was in one of them."""
    shared: list[SharedStep] = field(default_factory=list)
    """Those of its steps that others were in, whoever."""

    @property
    def alone(self) -> bool:
        """No other request was in its steps."""
        return not self.shared

    @property
    def is_cold_trial(self) -> bool:
        """It pays, and is computed all the same."""
        return self.reason is not None and self.trial_of is not None


class Judgements:
    """Those whose prompts are not computed yet. Each goes into the audit stream once."""

    def __init__(self, audit: AuditSink, measured: Callable[[Judgement], None] = lambda judgement: None) -> None:
        """``measured``: told of each whose prompt is computed."""
        self._audit, self._measured = audit, measured
        self._open: dict[str, Judgement] = {}

    def add(self, judgement: Judgement) -> None:
        """In place of an earlier one for the same request, which was asked about again."""
        self._open.pop(judgement.request_id, None)
        self._open[judgement.request_id] = judgement
        if len(self._open) > MOST_OPEN:
            self._tell(next(iter(self._open.values())), complete=False)

    def find(self, request_id: str) -> Judgement | None:
        return self._open.get(request_id)

    def drop(self, request_id: str) -> Judgement | None:
        """What was judged is not there. It is on no record."""
        return self._open.pop(request_id, None)

    def took(self, step: Step, microseconds: float) -> None:
        """A step with a part of their prompts took so long."""
        if not self._open or step.parts is None or step.shape is None:
            return
        in_step = {part.request_id for part in step.parts}
        for judgement in [self._open[request_id] for request_id in in_step if request_id in self._open]:
            parts = [part for part in step.parts if part.request_id == judgement.request_id]
            judgement.measured += microseconds
            judgement.steps += 1
            judgement.reused |= judgement.request_id in step.loaded or any(part.is_row for part in parts)
            if len(in_step) > 1:
                judgement.beside_prompts |= any(
                    not part.decodes and part.request_id != judgement.request_id for part in step.parts
                )
                moved = step.loaded.get(judgement.request_id, 0)
                judgement.shared.append(SharedStep(parts, moved, step.shape, microseconds))
            if any(not part.is_row and part.end >= judgement.prompt_tokens for part in parts):
                self._tell(judgement, complete=True)
                self._measured(judgement)

    def close(self) -> None:
        for judgement in list(self._open.values()):
            self._tell(judgement, complete=False)

    def _tell(self, judgement: Judgement, complete: bool) -> None:
        del self._open[judgement.request_id]
        self._audit.emit(
            CostsCompared(
                request_id=judgement.request_id,
                namespace=judgement.namespace,
                reason=judgement.reason,
                trial=judgement.trial_of is not None,
                predicted_cold_us=judgement.cold,
                predicted_reuse_us=judgement.reuse,
                doubt_us=judgement.doubt,
                measured_us=judgement.measured if complete else None,
                reused=judgement.reused if complete else None,
                steps=judgement.steps if complete else None,
                alone=judgement.alone if complete else None,
            )
        )
