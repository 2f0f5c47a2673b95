"""What a scheduler's half asks of its workers in a step, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from semblend_core.contract import DeclineReason, Namespace, SelfTestResult, Span, TokenIds
from semblend_core.recompute import MeanShift, Scores
from semblend_core.serving.claims import Rows
from semblend_core.serving.earlier import LeftDonor
from semblend_core.serving.prefixes import DonorName

Key = TypeVar("Key")


@dataclass
class LoadOrder:
    """Bring donors' KV into a request's blocks before the forward."""

    request_id: str
    namespace: Namespace
    block_ids: list[int]
    spans: tuple[Span, ...]
    reused_tokens: int
    tell_engine: bool
    """A failure must also be told to the engine, as blocks that hold nothing of use."""


@dataclass
class CorrectionOrder:
    """Correct spans inside the forward by what it computes of them."""

    request_id: str
    block_ids: list[int]
    spans: tuple[Span, ...]
    rows: Rows
    """What the same step computes inside the spans and between them."""
    shift: MeanShift


@dataclass
class ProbeOrder:
    """See inside the forward where a question looks."""

    request_id: str
    block_ids: list[int]
    question: tuple[int, int]
    """[start, end) of its tokens, which the same step computes."""
    layers: range
    """Whose attention counts."""


@dataclass
class CaptureOrder:
    """Keep a prompt's KV after the forward that completes it."""

    donor_id: str | None
    """None: read it for the self-test and let it go."""
    namespace: Namespace
    block_ids: list[int]
    token_ids: TokenIds
    saved_ms: float = 0.0
    """What it takes to compute it; 0: not known."""

    @property
    def name(self) -> DonorName:
        return (self.namespace.digest, str(self.donor_id))


@dataclass
class FetchOrder:
    """Bring donors' KV out of the disk's reach: a request that waits will want it."""

    number: int
    """Tells it from an earlier one for the same request, whose news may still be on their way."""
    request_id: str
    namespace: Namespace
    spans: tuple[Span, ...]


@dataclass
class StepWork:
    """One step's orders."""

    loads: list[LoadOrder] = field(default_factory=list)
    corrections: list[CorrectionOrder] = field(default_factory=list)
    probes: list[ProbeOrder] = field(default_factory=list)
    captures: list[CaptureOrder] = field(default_factory=list)
    fetches: list[FetchOrder] = field(default_factory=list)
    unwanted: list[str] = field(default_factory=list)
    """Requests for which nothing need be fetched any more."""
    forget: list[tuple[Namespace, str]] = field(default_factory=list)
    copied: list[tuple[Namespace, str, int]] = field(default_factory=list)
    """Donors of whose first tokens newer ones hold so many too."""
    weights: int = 0
    """How often they had changed when these orders were given."""
    purge: list[str] = field(default_factory=list)
    """Tenants of whom nothing that was captured before this step is kept."""
    computes: bool = True
    """Whether the engine computes anything in this step."""


@dataclass
class Landed:
    tokens: int
    bytes: int


@dataclass
class WorkerNews:
    """What has happened in a worker since it last told."""

    durable: dict[DonorName, frozenset[int]] = field(default_factory=dict)
    """The ranks that hold the donor; it may be used when all do."""
    recovered: dict[int, list[LeftDonor]] = field(default_factory=dict)
    """By rank: donors that an earlier process left on disk, by the namespace that discovery knows."""
    fetched: dict[int, frozenset[int]] = field(default_factory=dict)
    """By number of the order: the ranks at which its donors can be loaded from without waiting, or never will be."""
    lost: dict[DonorName, DeclineReason] = field(default_factory=dict)
    """Donors that are not, or no longer, kept."""
    landed: dict[str, Landed] = field(default_factory=dict)
    failed: dict[str, DeclineReason] = field(default_factory=dict)
    scores: dict[str, Scores | None] = field(default_factory=dict)
    """By request: how much its question attends to each token. None: it could not be seen. Each rank tells of its
    own heads."""
    self_test: dict[int, SelfTestResult] = field(default_factory=dict)
    """By rank, where it has changed."""
    no_correction: str | None = None
    """Why KV cannot be corrected inside the forward."""
    weights: int = 0
    """How often they must have changed by orders that are carried out. More than was ordered: a worker heard of it."""

    def __bool__(self) -> bool:
        donors = (self.durable, self.recovered, self.fetched, self.lost)
        loads = (self.landed, self.failed, self.scores)
        return any((*donors, *loads, self.self_test, self.no_correction, self.weights))

    def joined(self, other: WorkerNews) -> WorkerNews:
        """The news of several ranks as one. A load has landed where it has at every rank."""
        landed = {
            request: Landed(
                min(self.landed[request].tokens, other.landed[request].tokens),
                self.landed[request].bytes + other.landed[request].bytes,
            )
            for request in self.landed.keys() & other.landed.keys()
        }
        return WorkerNews(
            durable=_united(self.durable, other.durable),
            recovered=self.recovered | other.recovered,
            fetched=_united(self.fetched, other.fetched),
            lost=self.lost | other.lost,
            landed=landed,
            failed=self.failed | other.failed,
            scores={
                request: _added(self.scores.get(request), other.scores.get(request))
                for request in self.scores | other.scores
            },
            self_test=self.self_test | other.self_test,
            no_correction=self.no_correction or other.no_correction,
            weights=max(self.weights, other.weights),
        )


def _added(ours: Scores | None, theirs: Scores | None) -> Scores | None:
    """Of two ranks, each with some of the heads."""
    return None if ours is None or theirs is None else ours + theirs


def _united(ours: dict[Key, frozenset[int]], theirs: dict[Key, frozenset[int]]) -> dict[Key, frozenset[int]]:
    nobody: frozenset[int] = frozenset()
    return {key: ours.get(key, nobody) | theirs.get(key, nobody) for key in ours | theirs}
