"""Refusals, in the shape of OpenAI's errors. They never quote a prompt, a key or an address."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Refusal(Exception):  # noqa: N818 - it is an answer to the client, and not always an error
    status: int
    code: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        kind = "invalid_request_error" if self.status < 500 else "upstream_error"
        return json.dumps({"error": {"message": self.message, "type": kind, "code": self.code}}).encode()


def too_busy(message: str) -> Refusal:
    return Refusal(429, "overloaded", message, {"retry-after": "1"})
