"""The audit events: what happened to one request or donor, as one flat record each.

Every field but ``request_id`` may be None, which is written as null and means *not known*, never zero.
Namespaces are kept as their digest: no event can hold a tenant's salt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias

from semblend_core.contract import (
    DeclineReason,
    EvictionCause,
    LookupRequest,
    LookupResult,
    Namespace,
    Outcome,
    OutcomeKind,
    Plan,
    TenantReport,
    short_id,
)

AUDIT_SCHEMA = "semblend.audit.v1"

Stage: TypeAlias = Literal["lookup", "offer", "capture", "load"]
"""Where a request or donor was when it was declined."""

_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """What all events share."""

    event: ClassVar[str] = ""
    """The record's ``event``."""

    request_id: str | None
    """The request it belongs to, as ``short_id`` has it; None for what belongs to no request, such as an eviction."""
    namespace: Namespace | str | None = None
    """Given as a namespace or its digest, kept as the digest."""

    def __post_init__(self) -> None:
        if self.request_id is not None:
            object.__setattr__(self, "request_id", short_id(self.request_id))
        if isinstance(self.namespace, Namespace):
            object.__setattr__(self, "namespace", self.namespace.digest)
        elif self.namespace is not None and not _DIGEST.fullmatch(self.namespace):
            # The value is left out of the message: whatever it is, it may be a salt.
            raise ValueError("namespace must be a Namespace or its digest of 32 hex digits")

    def own_fields(self) -> dict[str, Any]:
        """What the record holds behind its envelope. Called by the writer, not where the event is emitted."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "request_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorCaptured(AuditEvent):
    """A finished request's KV was copied to where it will be loaded from."""

    event: ClassVar[str] = "donor_captured"
    donor_id: str
    tokens: int | None = None
    """Tokens whose KV is kept."""
    layers: int | None = None
    bytes: int | None = None
    """Bytes of KV kept, all layers together."""
    tier: str | None = None
    """Where they are kept, such as ``"device"`` or ``"host"``."""
    microseconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorRegistered(AuditEvent):
    """A captured donor became discoverable."""

    event: ClassVar[str] = "donor_registered"
    donor_id: str
    tokens: int | None = None
    """Tokens now discoverable; fewer than captured where the end of the donor is approximate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupDone(AuditEvent):
    """The search for one request ended, in a plan or in a reason."""

    event: ClassVar[str] = "lookup"
    reason: DeclineReason | None = None
    """Why there is no plan; None: there is one."""
    spans: int | None = None
    """Spans of the plan; 0 where there is none."""
    prompt_tokens: int | None = None
    exact_prefix_tokens: int | None = None
    """Leading tokens that the engine's own cache covers."""
    microseconds: float | None = None
    cut_short: bool = False
    """Time was up before all donors were compared."""

    @classmethod
    def of(cls, request: LookupRequest, result: LookupResult) -> LookupDone:
        return cls(
            request_id=request.request_id,
            namespace=request.namespace,
            reason=result.reason,
            spans=0 if result.plan is None else len(result.plan.spans),
            prompt_tokens=int(request.token_ids.size),
            exact_prefix_tokens=request.exact_prefix_tokens,
            microseconds=result.elapsed_us,
            cut_short=result.cut_short,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade(AuditEvent):
    """A plan was handed to the engine: an intention, not reuse.

    Holds the plan itself and spreads it into fields when the record is written: hundreds of spans take longer
    to spread than a lookup may take.
    """

    event: ClassVar[str] = "plan"
    materialize: bool
    """False: the engine must not load it (discovery only)."""
    plan: Plan

    @classmethod
    def of(cls, plan: Plan, *, materialize: bool, namespace: Namespace | str | None = None) -> PlanMade:
        return cls(request_id=plan.request_id, namespace=namespace, materialize=materialize, plan=plan)

    def own_fields(self) -> dict[str, Any]:
        plan = self.plan
        order = {donor: index for index, donor in enumerate(plan.donor_ids)}
        return {
            "namespace": self.namespace,
            "materialize": self.materialize,
            "prompt_tokens": plan.prompt_tokens,
            "exact_prefix_tokens": plan.exact_prefix_tokens,
            "reused_tokens": plan.reused_tokens,
            "computed_tokens": plan.computed_tokens,
            "first_approximate_token": plan.first_approximate_token,
            "donors": plan.donor_ids,
            "spans": len(plan.spans),
            # (target_start, index into donors, donor_start, length)
            "span_list": [(s.target_start, order[s.donor_id], s.donor_start, s.length) for s in plan.spans],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAdvertised(AuditEvent):
    """The engine's scheduler was told that tokens will be loaded. They have not landed yet."""

    event: ClassVar[str] = "load_advertised"
    tokens: int | None = None
    spans: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialized(AuditEvent):
    """Relocated KV landed and was used, as the backend confirmed it. The only event that is reuse."""

    event: ClassVar[str] = "materialized"
    tokens: int
    """Tokens confirmed, at least 1."""
    layers: int | None = None
    bytes: int | None = None
    """Bytes the backend moved; None where it cannot tell."""
    microseconds: float | None = None

    def __post_init__(self) -> None:
        # Not super(): slots make the decorator return a new class, which super() does not know.
        AuditEvent.__post_init__(self)
        if self.tokens < 1:
            raise ValueError(f"materialized states at least 1 confirmed token, got {self.tokens}")

    @classmethod
    def of(
        cls,
        outcome: Outcome,
        *,
        namespace: Namespace | str | None = None,
        layers: int | None = None,
        microseconds: float | None = None,
    ) -> Materialized:
        if outcome.kind is not OutcomeKind.MATERIALIZED or outcome.confirmed_tokens is None:
            raise ValueError(f"a {outcome.kind} outcome confirmed nothing and is no materialized event")
        return cls(
            request_id=outcome.request_id,
            namespace=namespace,
            tokens=outcome.confirmed_tokens,
            layers=layers,
            bytes=outcome.confirmed_bytes,
            microseconds=microseconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Aliased(AuditEvent):
    """KV of other tokens stood for the request's, where it lay. A provider proposed it; it is no reuse."""

    event: ClassVar[str] = "alias"
    tokens: int
    """Tokens of the request that it stood for, at least 1."""

    @classmethod
    def of(cls, outcome: Outcome, *, namespace: Namespace | str | None = None) -> Aliased:
        if outcome.alias_tokens is None:
            raise ValueError(f"a {outcome.kind} outcome is no alias event")
        return cls(request_id=outcome.request_id, namespace=namespace, tokens=outcome.alias_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined(AuditEvent):
    """A request was served without reuse, or a donor was not kept. Written once for each."""

    event: ClassVar[str] = "declined"
    reason: DeclineReason
    stage: Stage | None = None
    donor_id: str | None = None
    """The donor concerned, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostsCompared(AuditEvent):
    """What the cost gate predicted for a request, and what its prompt then took. Written once that is known."""

    event: ClassVar[str] = "costs"
    reason: DeclineReason | None
    """Why nothing is reused; None: a plan was taken."""
    trial: bool
    """It was taken in order to learn what it takes."""
    predicted_cold_us: float
    """All steps from the exact prefix to the end of the prompt, without reuse."""
    predicted_reuse_us: float
    """The same with the best plan."""
    doubt_us: float
    """Standard deviation of the difference between the two."""
    measured_us: float | None = None
    """All steps that the prompt was computed in; None where it was not computed to its end."""
    reused: bool | None = None
    """Whether relocated KV was in those steps, as planned."""
    steps: int | None = None
    alone: bool | None = None
    """Whether nobody else was in those steps. Otherwise ``measured_us`` is theirs too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityCompared(AuditEvent):
    """A request's answer was scored behind the KV that it was served with, and behind exact KV."""

    event: ClassVar[str] = "quality"
    tier: str
    kind: str
    """Of its plan: ``one_place``, ``few_places`` or ``many_places``."""
    spending: float
    """What was computed afresh, by the tier's own budget."""
    agreement: float
    """Share of positions with the same likeliest token."""
    kl: float | None
    """Mean over positions, of reuse from cold, in nats; None where the engine gives no probabilities."""
    positions: int
    spending_now: float
    """What the next plan of this kind may spend; 0: it is declined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted(AuditEvent):
    """A donor is gone."""

    event: ClassVar[str] = "evicted"
    request_id: str | None = None
    donor_id: str
    tokens: int | None = None
    bytes: int | None = None
    cause: EvictionCause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Regretted(AuditEvent):
    """A donor that had gone was wanted again: a prompt that was kept later shares text with it, and nobody holds it."""

    event: ClassVar[str] = "regretted"
    request_id: str | None = None
    donor_id: str
    tokens: int
    """About how many of its tokens are wanted, by a sample of its fingerprints."""
    after_s: float
    """Since it went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPurged(AuditEvent):
    """All that was held of a tenant is dropped. Its files are deleted soon after."""

    event: ClassVar[str] = "tenant_purged"
    request_id: str | None = None
    tenant: str
    """16 hex digits that stand for its salt: its namespaces begin with them."""
    donors: int
    tokens: int
    lineages: int
    captures: int
    """Copies under way that were stopped."""

    @classmethod
    def of(cls, tenant: str, found: TenantReport) -> TenantPurged:
        return cls(
            tenant=tenant, donors=found.donors, tokens=found.tokens, lineages=found.lineages, captures=found.captures
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSeen(AuditEvent):
    """Something failed inside SemBlend; the request went on without it."""

    event: ClassVar[str] = "error"
    where: str
    """The operation that failed, such as ``"lookup"``."""
    error: str | None = None
    """The exception's class."""
    location: str | None = None
    """File and line that raised it."""

    @classmethod
    def of(
        cls,
        error: BaseException,
        where: str,
        *,
        request_id: str | None = None,
        namespace: Namespace | str | None = None,
    ) -> ErrorSeen:
        """Take the class and the place, not the message: messages quote prompts, paths and salts."""
        step = error.__traceback__
        while step is not None and step.tb_next is not None:
            step = step.tb_next
        place = None if step is None else f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}"
        return cls(
            request_id=request_id,
            namespace=namespace,
            where=where,
            error=type(error).__qualname__,
            location=place,
        )


EVENTS: MappingProxyType[str, type[AuditEvent]] = MappingProxyType(
    {
        kind.event: kind
        for kind in (
            DonorCaptured,
            DonorRegistered,
            LookupDone,
            PlanMade,
            LoadAdvertised,
            Materialized,
            Aliased,
            Declined,
            CostsCompared,
            QualityCompared,
            Evicted,
            Regretted,
            TenantPurged,
            ErrorSeen,
        )
    }
)
"""Every event by the name it has on disk."""


def as_record(
    event: AuditEvent, *, engine: str, time: float, client_id: Callable[[str], str] | None = None
) -> dict[str, Any]:
    """The record on disk: the envelope first, then the event's own fields.

    ``client_id``: from the engine's id of a request to the one that its client sent, where the engine adds to it.
    """
    engines_id = event.request_id
    record: dict[str, Any] = {
        "schema": AUDIT_SCHEMA,
        "event": event.event,
        "time": time,
        "engine": engine,
        "request_id": engines_id,
        "client_request_id": client_id(engines_id) if client_id and engines_id is not None else engines_id,
    }
    for name, value in event.own_fields().items():
        # JSON has no NaN: a figure that is not a number is not known.
        record[name] = None if isinstance(value, float) and not math.isfinite(value) else value
    return record
