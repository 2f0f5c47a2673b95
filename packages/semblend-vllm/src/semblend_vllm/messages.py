"""What the scheduler's half asks of the workers, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from semblend_core import DeclineReason, Namespace, Span, TokenIds
from semblend_core.recompute import MeanShift


@dataclass
class Load:
    """Bring donors' KV into a request's blocks before the forward."""

    request_id: str
    namespace: Namespace
    block_ids: list[int]
    spans: tuple[Span, ...]
    rows: tuple[tuple[int, int], ...]
    """What the same step computes inside the spans and between them."""
    correction: MeanShift | None
    reused_tokens: int


@dataclass
class Capture:
    """Keep a prompt's KV after the forward that completes it."""

    donor_id: str
    namespace: Namespace
    block_ids: list[int]
    token_ids: TokenIds


@dataclass
class StepWork(KVConnectorMetadata):  # type: ignore[misc]
    """One step's orders."""

    loads: list[Load] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    forget: list[tuple[Namespace, str]] = field(default_factory=list)


@dataclass
class Landed:
    tokens: int
    bytes: int


@dataclass
class WorkerNews(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What has happened in a worker since it last told. Donors are (namespace digest, donor id)."""

    ranks: int = 1
    durable: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many ranks hold the donor; it may be used when all do."""
    gone: set[tuple[str, str]] = field(default_factory=set)
    not_kept: dict[tuple[str, str], DeclineReason] = field(default_factory=dict)
    landed: dict[str, Landed] = field(default_factory=dict)
    failed: dict[str, DeclineReason] = field(default_factory=dict)
    self_test: str | None = None
    """Empty: passed. Text: why it failed. None: nothing new."""

    def __bool__(self) -> bool:
        return bool(
            self.durable or self.gone or self.not_kept or self.landed or self.failed or self.self_test is not None
        )

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerNews:
        assert isinstance(other, WorkerNews)
        durable = dict(self.durable)
        for donor, ranks in other.durable.items():
            durable[donor] = durable.get(donor, 0) + ranks
        landed = {
            request: Landed(
                min(self.landed[request].tokens, other.landed[request].tokens),
                self.landed[request].bytes + other.landed[request].bytes,
            )
            for request in self.landed.keys() & other.landed.keys()
        }
        return WorkerNews(
            ranks=self.ranks + other.ranks,
            durable=durable,
            gone=self.gone | other.gone,
            not_kept=self.not_kept | other.not_kept,
            landed=landed,
            failed=self.failed | other.failed,
            self_test=self.self_test or other.self_test if None not in (self.self_test, other.self_test) else None,
        )
