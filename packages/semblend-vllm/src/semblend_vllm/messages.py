"""What the scheduler's half asks of the workers, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from semblend_core import DeclineReason, Namespace, SelfTestResult, Span, TokenIds
from semblend_core.recompute import MeanShift
from semblend_vllm.claims import Rows
from semblend_vllm.requests import Donor

Key = TypeVar("Key")


@dataclass
class Load:
    """Bring donors' KV into a request's blocks before the forward."""

    request_id: str
    namespace: Namespace
    block_ids: list[int]
    spans: tuple[Span, ...]
    reused_tokens: int
    official: bool
    """Our scheduler is not in charge: a failure must be told to vLLM by its own means."""


@dataclass
class Correct:
    """Correct spans inside the forward by what it computes of them."""

    request_id: str
    block_ids: list[int]
    spans: tuple[Span, ...]
    rows: Rows
    """What the same step computes inside the spans and between them."""
    shift: MeanShift


@dataclass
class Capture:
    """Keep a prompt's KV after the forward that completes it."""

    donor_id: str | None
    """None: read it for the self-test and let it go."""
    namespace: Namespace
    block_ids: list[int]
    token_ids: TokenIds


@dataclass
class Fetch:
    """Bring donors' KV out of the disk's reach: a request that waits will want it."""

    request_id: str
    namespace: Namespace
    spans: tuple[Span, ...]


@dataclass
class StepWork(KVConnectorMetadata):  # type: ignore[misc]
    """One step's orders."""

    loads: list[Load] = field(default_factory=list)
    corrections: list[Correct] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    unwanted: list[str] = field(default_factory=list)
    """Requests for which nothing need be fetched any more."""
    forget: list[tuple[Namespace, str]] = field(default_factory=list)


@dataclass
class Landed:
    tokens: int
    bytes: int


@dataclass
class WorkerNews(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What has happened in a worker since it last told."""

    durable: dict[Donor, frozenset[int]] = field(default_factory=dict)
    """The ranks that hold the donor; it may be used when all do."""
    recovered: list[tuple[str, str, TokenIds]] = field(default_factory=list)
    """Donors that an earlier process left on disk: namespace digest, id, tokens."""
    fetched: dict[str, frozenset[int]] = field(default_factory=dict)
    """By request: the ranks at which its donors can be loaded from without waiting, or will never come."""
    lost: dict[Donor, DeclineReason] = field(default_factory=dict)
    """Donors that are not, or no longer, kept."""
    landed: dict[str, Landed] = field(default_factory=dict)
    failed: dict[str, DeclineReason] = field(default_factory=dict)
    self_test: dict[int, SelfTestResult] = field(default_factory=dict)
    """By rank, where it has changed."""
    no_correction: str | None = None
    """Why KV cannot be corrected inside the forward."""

    def __bool__(self) -> bool:
        donors = (self.durable, self.recovered, self.fetched, self.lost)
        return any((*donors, self.landed, self.failed, self.self_test, self.no_correction))

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerNews:
        assert isinstance(other, WorkerNews)
        landed = {
            request: Landed(
                min(self.landed[request].tokens, other.landed[request].tokens),
                self.landed[request].bytes + other.landed[request].bytes,
            )
            for request in self.landed.keys() & other.landed.keys()
        }
        return WorkerNews(
            durable=_united(self.durable, other.durable),
            recovered=self.recovered + other.recovered,
            fetched=_united(self.fetched, other.fetched),
            lost=self.lost | other.lost,
            landed=landed,
            failed=self.failed | other.failed,
            self_test=self.self_test | other.self_test,
            no_correction=self.no_correction or other.no_correction,
        )


def _united(ours: dict[Key, frozenset[int]], theirs: dict[Key, frozenset[int]]) -> dict[Key, frozenset[int]]:
    nobody: frozenset[int] = frozenset()
    return {key: ours.get(key, nobody) | theirs.get(key, nobody) for key in ours | theirs}
