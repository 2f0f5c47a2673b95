"""Addresses of servers, as settings give them."""

from __future__ import annotations

import httpx

from semblend_dynamo.gateway.secret_file import ConfigurationError


def checked_address(url: str, variable: str) -> str:
    """``url`` without a trailing slash and without ``/v1``, which the paths bring themselves."""
    try:
        parsed = httpx.URL(url)
        usable = parsed.scheme in ("http", "https") and bool(parsed.host) and not parsed.query
    except httpx.InvalidURL:
        usable = False
    if not usable:
        raise ConfigurationError(f"{variable}: {url!r} is no address of the form http://host:port")
    if parsed.userinfo:
        raise ConfigurationError(f"{variable}: an address holds credentials, which pages would show; leave them out")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
