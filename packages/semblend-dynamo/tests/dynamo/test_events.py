"""What replicas tell each other: the envelope, and what is refused."""

import json

import numpy as np
import pytest

from semblend_core import Namespace, as_token_ids, donor_id_of
from semblend_dynamo.dynamo.events import (
    DonorEvent,
    DonorEvicted,
    DonorRegistered,
    DonorsPurged,
    EventError,
    GenerationReset,
)
from semblend_dynamo.dynamo.requests import RequestReader
from semblend_dynamo.placement import DonorKey

TOKENS = as_token_ids(np.arange(200))
NAMESPACE = RequestReader("model", 16).namespace("raw-salt", "adapter")
REGISTERED = DonorEvent(7, 11, 2, DonorRegistered(NAMESPACE, donor_id_of(TOKENS), TOKENS, 3))


def over_the_wire(event: DonorEvent) -> DonorEvent:
    return DonorEvent.decode(json.loads(json.dumps(event.encode())))


def test_a_donor_arrives_as_it_was_sent() -> None:
    came = over_the_wire(REGISTERED)
    assert (came.event_id, came.worker_id, came.dp_rank) == (7, 11, 2)
    assert isinstance(came.change, DonorRegistered)
    assert came.change.namespace == NAMESPACE
    assert came.change.key == DonorKey(NAMESPACE.digest, donor_id_of(TOKENS))
    assert np.array_equal(came.change.token_ids, TOKENS)
    assert came.change.generation == 3


def test_the_envelope_is_the_proposed_one() -> None:
    encoded = REGISTERED.encode()
    assert set(encoded) == {"schema_version", "event_id", "worker_id", "dp_rank", "data"}
    assert encoded["data"]["kind"] == "donor_registered"
    assert encoded["data"]["location"] == {"kind": "worker", "worker_id": 11, "dp_rank": 2, "tier": "device"}
    assert encoded["data"]["segments"][0]["token_range"] == [0, 200]


def test_no_salt_is_sent() -> None:
    assert "raw-salt" not in json.dumps(REGISTERED.encode())


@pytest.mark.parametrize(
    "change",
    [
        DonorEvicted(DonorKey("digest", "donor"), 1),
        DonorsPurged("0123456789abcdef", 1),
        DonorsPurged(None, 1),
        GenerationReset(4),
    ],
)
def test_the_other_kinds_arrive_too(change: object) -> None:
    assert over_the_wire(DonorEvent(1, 0, 0, change)).change == change  # type: ignore[arg-type]


def test_what_cannot_be_used_is_refused_with_a_reason() -> None:
    good = REGISTERED.encode()
    cut = json.loads(json.dumps(good))
    cut["data"]["token_count"] = 100
    foreign = json.loads(json.dumps(good))
    foreign["data"]["namespace"]["model"] = "another"
    for bad, reason in [
        ({}, "schema_version"),
        ({**good, "schema_version": 2}, "schema_version 2"),
        ({**good, "data": {"kind": "donor_relocated"}}, "unknown kind"),
        ({**good, "data": {"kind": "donors_purged", "scope": {}, "provider_generation": 0}}, "neither"),
        ({**good, "event_id": "x"}, "not a donor event"),
        ({**good, "event_id": float("inf")}, "not a donor event"),
        ({**good, "event_id": 1 << 63}, "out of range"),
        ({**good, "worker_id": -1}, "out of range"),
        ({**good, "data": {"kind": "provider_generation_reset", "generation": 1 << 70}}, "out of range"),
        ({**good, "data": {"kind": "donors_purged", "scope": [], "provider_generation": 0}}, "not a donor event"),
        ({**good, "data": {"kind": "donors_purged", "scope": {"tenant": "a"}, "provider_generation": 0}}, "neither"),
        ({**good, "data": {"kind": "donor_evicted", "namespace": "x", "donor_id": "y"}}, "not a donor event"),
        ({**good, "data": [1]}, "not a donor event"),
        ("an event", "not a donor event"),
        (cut, "digest"),
        (foreign, "same release"),
    ]:
        with pytest.raises(EventError, match=reason):
            DonorEvent.decode(bad)  # type: ignore[arg-type]


def test_a_tenants_namespace_can_be_rebuilt_from_its_digest_alone() -> None:
    reader = RequestReader("model", 16)
    unsalted: Namespace = reader.namespace(None, "adapter")
    assert unsalted.for_tenant(NAMESPACE.salt_digest) == NAMESPACE
