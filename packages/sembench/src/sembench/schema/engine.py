"""What an engine's own log or audit stream says, counted."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from sembench.schema.result import Count

ENGINE_SUMMARY_SCHEMA = "sembench.engine-summary.v1"


class EngineRequest(BaseModel):
    """One request, as far as the events name it."""

    model_config = ConfigDict(extra="forbid")

    advertised_tokens: Count | None = None
    confirmed_tokens: Count | None = None
    alias_tokens: Count | None = None
    """KV of other tokens stood for these: no reuse, and never in ``confirmed_tokens``."""
    reason: str | None = None
    spans: Count | None = None
    lookup_us: float | None = None


class EngineSummary(BaseModel):
    """Only ``materialized`` is reuse; a count is None where the format cannot tell it."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal["sembench.engine-summary.v1"] = "sembench.engine-summary.v1"
    engine: str
    inputs: list[str]
    lines: Count
    unparsed_lines: Count
    """Lines that claim to be events and are not readable; other log lines are not counted here."""
    torn_lines: list[str] = []
    donors_captured: Count | None = None
    donors_registered: Count | None = None
    lookups: Count | None = None
    lookup_hits: Count | None = None
    plans: Count | None = None
    loads_advertised: Count | None = None
    advertised_tokens: Count | None = None
    materialization_events: Count | None = None
    materialized_tokens: Count | None = None
    materialized_bytes: Count | None = None
    alias_events: Count | None = None
    alias_tokens: Count | None = None
    """KV of other tokens stood for these, as a third-party provider proposed: no reuse."""
    exact_retrieved_tokens: Count | None = None
    """LMCache: an exact baseline, no semantic reuse."""
    stored_tokens: Count | None = None
    evicted_donors: Count | None = None
    regretted_donors: Count | None = None
    """Donors that were wanted again after they had gone."""
    regretted_tokens: Count | None = None
    declined: dict[str, Count] = {}
    evicted: dict[str, Count] = {}
    errors: Count = 0
    error_samples: list[str] = []
    first_time: float | None = None
    last_time: float | None = None
    requests: dict[str, EngineRequest] = {}
    donor_requests: list[str] = []
    """Requests that left a donor, where the format names them."""
    extra: dict[str, Any] = {}
