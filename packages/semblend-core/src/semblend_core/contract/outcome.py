"""What became of a request, as the backend confirmed it, and every reason for not reusing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

LONGEST_ID = 256


def short_id(request_id: str) -> str:
    """What is kept of a request's id once the request is gone. Clients choose ids: one may be as long as a book."""
    if len(request_id) <= LONGEST_ID:
        return request_id
    digest = hashlib.blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{request_id[:64]}...{digest}"


class DeclineReason(StrEnum):
    """Why nothing was reused (or a donor not kept). Each is a label of the decline counters."""

    # Before any search.
    DISABLED = "disabled"
    SHUT_DOWN = "shut_down"
    INVALID_TOKENS = "invalid_tokens"
    NO_SALT = "no_salt"
    """The request names no tenant, and ``SEMBLEND_SHARING=salted`` lets such share with nobody."""
    UNSUPPORTED_REQUEST = "unsupported_request"
    SELF_TEST_FAILED = "self_test_failed"
    SELF_TEST_PENDING = "self_test_pending"
    """Nothing has proved yet that this model's keys can be moved; the first prompts will."""
    PROMPT_TOO_SHORT = "prompt_too_short"
    EXACT_PREFIX_COVERS = "exact_prefix_covers"
    EXACT_PREFIX_ELSEWHERE = "exact_prefix_elsewhere"
    """The engine has more of it outside its device's memory, or fetches more: that comes first."""
    # Found nothing, or not enough.
    NO_DONORS = "no_donors"
    NO_SPANS = "no_spans"
    REUSE_RATIO_TOO_LOW = "reuse_ratio_too_low"
    TOO_FEW_TOKENS_SAVED = "too_few_tokens_saved"
    DOES_NOT_PAY = "does_not_pay"
    COSTS_UNKNOWN = "costs_unknown"
    """The engine has not computed enough prompts yet to tell what reuse would spare; the first few will."""
    QUALITY_TIER = "quality_tier"
    QUALITY_TARGET = "quality_target"
    """Answers with reuse of this kind were compared with cold ones and agreed less than ``SEMBLEND_QUALITY_TARGET``."""
    STRICT_PREFIX_BOUNDARY = "strict_prefix_boundary"
    EXACT_ONLY = "exact_only"
    """The engine publishes whatever is loaded under exact keys: only what continues an exact prefix exactly may be."""
    LOOKUP_TIMEOUT = "lookup_timeout"
    # Between plan and landed bytes.
    DONOR_EVICTED = "donor_evicted"
    DONOR_CORRUPT = "donor_corrupt"
    DONOR_ON_DISK = "donor_on_disk"
    """Its KV is read from disk, and the engine lets no request wait for that: the next one may find it in memory."""
    ALLOCATION_FAILED = "allocation_failed"
    LOAD_FAILED = "load_failed"
    ABORTED = "aborted"
    INTERNAL_ERROR = "internal_error"
    # A donor that was offered and not kept.
    DONOR_TOO_SHORT = "donor_too_short"
    DONOR_TOO_LARGE = "donor_too_large"
    APPROXIMATE_SOURCE = "approximate_source"
    DUPLICATE_DONOR = "duplicate_donor"
    CAPTURE_FAILED = "capture_failed"
    # A prompt that did not become a donor.
    DONOR_COVERED = "donor_covered"
    """A donor holds it already, but for fewer tokens than a span has."""
    DONOR_ASKED_ONCE = "donor_asked_once"
    """A donor holds most of it; it is kept when it is asked for again."""


class ProbeEnd(StrEnum):
    """What became of a probe: a first step that shows where a request's question looks."""

    CHOSE = "chose"
    """Rows were chosen by what it showed."""
    FAILED = "failed"
    """It showed nothing. The request got the rows that its tier computes without a probe."""
    ENDED = "ended"
    """The request ended or started over before it could be of use."""


class OutcomeKind(StrEnum):
    EXACT_PREFIX = "exact_prefix"
    """The engine's own prefix cache served all that could be served."""
    DISCOVERY_ONLY = "discovery_only"
    """Reusable spans were found and, by setting or self-test, not loaded."""
    PLACEMENT = "placement"
    """The request was routed to where its donor lives; nothing is said about reuse there."""
    MATERIALIZED = "materialized"
    """Relocated KV landed and was used."""
    ALIAS = "alias"
    """KV of *other* tokens stood for the request's, as a prefix provider proposed. It is no materialized reuse."""
    DECLINED = "declined"
    """Reuse was refused or failed, for ``reason``; the engine prefilled normally."""
    COLD = "cold"
    """Nothing was looked for (reuse switched off for this request)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request's end, reported once, after the bytes landed or failed to. Unknown is None, never 0."""

    request_id: str
    kind: OutcomeKind
    confirmed_tokens: int | None = None
    """Relocated tokens whose KV the backend confirmed. Set for MATERIALIZED, None otherwise."""
    confirmed_bytes: int | None = None
    """Bytes the backend moved for them, where it can tell."""
    alias_tokens: int | None = None
    """Tokens of the request that KV of other tokens stood for. Set for ALIAS, None otherwise."""
    reason: DeclineReason | None = None
    """Set for DECLINED; may be set for DISCOVERY_ONLY (why nothing was loaded); None otherwise."""

    def __post_init__(self) -> None:
        if not self.request_id:
            raise ValueError("an outcome names its request: request_id must not be empty")
        if self.kind is OutcomeKind.MATERIALIZED:
            if self.confirmed_tokens is None or self.confirmed_tokens < 1:
                raise ValueError("a materialized outcome states how many tokens the backend confirmed, at least 1")
        elif self.confirmed_tokens is not None or self.confirmed_bytes is not None:
            raise ValueError(f"{self.kind} confirms nothing: leave confirmed_tokens and confirmed_bytes None")
        if self.kind is OutcomeKind.ALIAS:
            if self.alias_tokens is None or self.alias_tokens < 1:
                raise ValueError("an alias outcome states for how many tokens other KV stood, at least 1")
        elif self.alias_tokens is not None:
            raise ValueError(f"{self.kind} is no alias: leave alias_tokens None")
        if self.confirmed_bytes is not None and self.confirmed_bytes < 1:
            raise ValueError("confirmed_bytes is at least 1, or None where the backend cannot tell")
        if self.kind is OutcomeKind.DECLINED and self.reason is None:
            raise ValueError("a declined outcome names its reason")
        if self.reason is not None and self.kind not in (OutcomeKind.DECLINED, OutcomeKind.DISCOVERY_ONLY):
            raise ValueError(f"{self.kind} has no decline reason")
