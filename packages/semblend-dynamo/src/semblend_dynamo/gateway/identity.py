"""Who asks: tenant and session, and the salt by which engines keep tenants apart."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from semblend_dynamo.gateway.headers import RawHeaders, header

SaltRule: TypeAlias = Literal["pass", "tenant", "api_key", "remove"]
SaltField: TypeAlias = Literal["cache_salt", "extra_key"]
SALT_FIELDS = ("cache_salt", "extra_key")

_LONGEST_NAME = 200
_SAFE_ID = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(frozen=True)
class Caller:
    """What is known of the sender of one request."""

    request_id: str
    tenant: str
    """Empty: it named none."""
    session: str
    """Empty: it named none."""
    api_key: str = field(default="", repr=False)


def caller_of(headers: RawHeaders, tenant_header: str) -> Caller:
    asked_id = header(headers, b"x-request-id")
    return Caller(
        # An id goes into headers and files: one with other characters is replaced.
        request_id=asked_id if _SAFE_ID.fullmatch(asked_id) else f"sb-{secrets.token_hex(12)}",
        tenant=bounded_name(header(headers, tenant_header.lower().encode("latin-1"))),
        session=bounded_name(header(headers, b"x-session-id")),
        api_key=header(headers, b"authorization"),
    )


def bounded_name(text: str) -> str:
    """``text``, or its digest where it is too long to be kept: cut off, it could be another's name."""
    if len(text) <= _LONGEST_NAME:
        return text
    # No header can hold the first character, so nobody can be called by another's digest.
    return f"\0{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


@dataclass(frozen=True)
class Salting:
    """The operator's rule for the salt that a replica is sent."""

    rule: SaltRule
    key: str = field(default="", repr=False)
    salt_field: SaltField = "cache_salt"

    def apply(self, asked: MutableMapping[str, Any], caller: Caller) -> bool:
        """Set or remove the salt in ``asked``; True where that changed it."""
        if self.rule == "pass":
            return False
        before = {name: asked.get(name) for name in SALT_FIELDS if name in asked}
        for name in SALT_FIELDS:
            asked.pop(name, None)
        who = {"tenant": caller.tenant, "api_key": caller.api_key}.get(self.rule, "")
        if who:
            asked[self.salt_field] = self._salt_of(who)
        return before != {name: asked[name] for name in SALT_FIELDS if name in asked}

    def circle_of(self, asked: MutableMapping[str, Any], caller: Caller) -> str | None:
        """Those among whom a request's prompt may be found again; None: it shares with nobody.

        Read after ``apply``. With ``pass`` both what the client says of its tenant and its salt must agree. It is a
        digest: a salt may be as long as a body, and sessions are kept by their circle.
        """
        salts = [asked.get(name) or None for name in SALT_FIELDS]
        tenant = caller.tenant if self.rule == "pass" else ""
        if not tenant and not any(salts):
            return None
        return hashlib.sha256(json.dumps([tenant, *salts], sort_keys=True).encode()).hexdigest()

    def _salt_of(self, who: str) -> str:
        return hmac.new(self.key.encode(), who.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
