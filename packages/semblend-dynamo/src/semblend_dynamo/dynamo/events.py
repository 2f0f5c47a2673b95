"""What router replicas tell each other of donors: the event envelope that dynamo#10127 proposes.

An event carries no text and no salt. A donor's tokens travel in ``provider_metadata`` of its one segment, which the
proposal leaves to the provider: replicas need them to find spans and to ask Dynamo's index where the donor lies.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from semblend_core import Namespace, TokenIds, as_token_ids, donor_id_of
from semblend_dynamo.placement import DonorKey

SCHEMA_VERSION = 1


def is_tenant(name: object) -> bool:
    """Whether it is a ``Namespace.salt_digest``; a shorter one would be the beginning of many."""
    return isinstance(name, str) and re.fullmatch(r"[0-9a-f]{16}", name) is not None


class EventError(ValueError):
    """An event that cannot be read. It is counted and left out."""


@dataclass(frozen=True, slots=True, eq=False)
class DonorRegistered:
    namespace: Namespace
    donor_id: str
    token_ids: TokenIds
    generation: int

    @property
    def key(self) -> DonorKey:
        return DonorKey(self.namespace.digest, self.donor_id)


@dataclass(frozen=True, slots=True)
class DonorEvicted:
    key: DonorKey
    generation: int


@dataclass(frozen=True, slots=True)
class DonorsPurged:
    tenant: str | None
    """``Namespace.salt_digest``; None: all donors of all tenants."""
    generation: int


@dataclass(frozen=True, slots=True)
class GenerationReset:
    generation: int
    """Donors of earlier generations are void, such as after new weights."""


Change: TypeAlias = DonorRegistered | DonorEvicted | DonorsPurged | GenerationReset


@dataclass(frozen=True, slots=True, eq=False)
class DonorEvent:
    event_id: int
    """A clock reading that grows in every replica and is carried from one to the other: later means larger."""
    worker_id: int
    """Where the donor was served; 0 where an event concerns no worker."""
    dp_rank: int
    change: Change

    def encode(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "event_id": self.event_id,
            "worker_id": self.worker_id,
            "dp_rank": self.dp_rank,
            "data": _encode_change(self.change, self.worker_id, self.dp_rank),
        }

    @classmethod
    def decode(cls, event: Mapping[str, Any]) -> DonorEvent:
        """Raises EventError for whatever cannot be used as it is."""
        try:
            version = event["schema_version"]
            if version != SCHEMA_VERSION:
                raise EventError(f"schema_version {str(version)[:40]} is not {SCHEMA_VERSION}")
            worker_id, dp_rank = _number(event["worker_id"], bits=64), _number(event["dp_rank"])
            return cls(_number(event["event_id"]), worker_id, dp_rank, _decode_change(event["data"]))
        except EventError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            # Its message could quote what came, of whatever length; a missing field is one of ours.
            what = f"no {error}" if isinstance(error, KeyError) else type(error).__name__
            raise EventError(f"not a donor event: {what}") from None


def _encode_change(change: Change, worker_id: int, dp_rank: int) -> dict[str, Any]:
    if isinstance(change, DonorRegistered):
        tokens = change.token_ids
        return {
            "kind": "donor_registered",
            "donor_id": change.donor_id,
            "namespace": _encode_namespace(change.namespace),
            "location": {"kind": "worker", "worker_id": worker_id, "dp_rank": dp_rank, "tier": "device"},
            "token_count": int(tokens.size),
            "segments": [
                {
                    "segment_id": 0,
                    "token_range": [0, int(tokens.size)],
                    "digest": donor_id_of(tokens),
                    "provider_metadata": base64.b64encode(tokens.astype("<i4").tobytes()).decode("ascii"),
                }
            ],
            "provider_generation": change.generation,
        }
    if isinstance(change, DonorEvicted):
        return {
            "kind": "donor_evicted",
            "donor_id": change.key.donor_id,
            "namespace": {"digest": change.key.namespace_digest},
            "provider_generation": change.generation,
        }
    if isinstance(change, DonorsPurged):
        scope = {"all": True} if change.tenant is None else {"tenant": change.tenant}
        return {"kind": "donors_purged", "scope": scope, "provider_generation": change.generation}
    return {"kind": "provider_generation_reset", "generation": change.generation}


def _number(value: Any, *, bits: int = 63) -> int:
    """One that every replica can pass on, and the next one too: stamps and generations are carried along."""
    number = int(value)
    if not 0 <= number < 1 << bits:
        raise EventError("a number is out of range")
    return number


def _decode_change(data: Mapping[str, Any]) -> Change:
    kind = data["kind"]
    if kind == "donor_registered":
        tokens = _decode_tokens(data)
        return DonorRegistered(
            _decode_namespace(data["namespace"]), str(data["donor_id"]), tokens, _number(data["provider_generation"])
        )
    if kind == "donor_evicted":
        key = DonorKey(str(data["namespace"]["digest"]), str(data["donor_id"]))
        return DonorEvicted(key, _number(data["provider_generation"]))
    if kind == "donors_purged":
        scope = data["scope"]
        if not scope.get("all") and not is_tenant(scope.get("tenant")):
            raise EventError("donors_purged names neither all nor a tenant")
        return DonorsPurged(None if scope.get("all") else scope["tenant"], _number(data["provider_generation"]))
    if kind == "provider_generation_reset":
        return GenerationReset(_number(data["generation"]))
    raise EventError(f"unknown kind {str(kind)[:40]!r}")


def _decode_tokens(data: Mapping[str, Any]) -> TokenIds:
    [segment] = data["segments"]
    tokens = as_token_ids(np.frombuffer(base64.b64decode(segment["provider_metadata"]), dtype="<i4"))
    if tokens.size != data["token_count"] or donor_id_of(tokens) != segment["digest"]:
        raise EventError("the donor's tokens do not match their digest")
    return tokens


def _encode_namespace(namespace: Namespace) -> dict[str, Any]:
    return {
        "model": namespace.model,
        "model_revision": namespace.revision,
        "tokenizer": namespace.tokenizer,
        "kv_dtype": namespace.dtype,
        "kv_layout": namespace.kv_layout,
        "block_size": namespace.block_size,
        "adapter": namespace.adapter,
        "tenant": namespace.salt_digest,
        "digest": namespace.digest,
    }


def _decode_namespace(fields: Mapping[str, Any]) -> Namespace:
    unsalted = Namespace(
        model=fields["model"],
        revision=fields["model_revision"],
        tokenizer=fields["tokenizer"],
        dtype=fields["kv_dtype"],
        kv_layout=fields["kv_layout"],
        block_size=fields["block_size"],
        adapter=fields["adapter"],
        salt=None,
    )
    namespace = unsalted.for_tenant(fields["tenant"])
    if namespace.digest != fields["digest"]:
        raise EventError("the namespace does not match its digest: do all routers run the same release?")
    return namespace
