"""The ids that the replay sends, and what engines make of them."""

from __future__ import annotations

import re
from collections.abc import Collection

_SENT = re.compile(r"sb-[0-9a-f]{8}-([0-9a-f]{16})-[a-z]+[0-9]*-[0-9]{3}")
"""Engines put their own marks before and behind them."""
_PREPARING = re.compile(r"sb-(?:preflight|warmup)-[0-9a-f]{16}")


def find_client_id(name: str) -> str:
    """The id that the replay sent, from what an engine made of it; the name itself where there is none in it."""
    found = _SENT.search(name)
    return found[0] if found else name


def find_sent_id(name: str, sent: Collection[str]) -> str:
    """The same where ``sent`` holds ids of another form. An id inside a longer word is another request's."""
    if name in sent or _SENT.search(name):
        return find_client_id(name)
    return next((each for each in sent if re.search(rf"(?<!\w){re.escape(each)}(?!\w)", name)), name)


def run_and_item(request_id: str) -> str:
    """The part of an id that donors and recipient of one item share."""
    found = _SENT.fullmatch(request_id)
    return request_id[: found.end(1)] if found else request_id


def prepares(name: str) -> bool:
    """Whether it is a request that every replay sends before its first item."""
    return _PREPARING.search(name) is not None
