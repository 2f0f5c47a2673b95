"""vLLM's names for requests, and the ids that clients sent in ``X-Request-Id``."""

from __future__ import annotations

import re

_SERVED = re.compile(r"(?:\d+_)?(?:cmpl-(?P<completion>.+)-\d+|chatcmpl-(?P<chat>.+?)(?:_\d+)?)-[0-9a-f]{8}")
"""What its OpenAI server makes of a client's id: which API, which prompt of several, eight random digits behind."""


def client_id(request_id: str) -> str:
    """The id that the client sent; vLLM's own where none can be seen in it."""
    found = _SERVED.fullmatch(request_id)
    return request_id if found is None else found["completion"] or found["chat"]
