"""uv installs what environments hold: it unpacks a wheel once for all of them, and in a tenth of pip's time.

uv does not read pip's configuration. Where a machine's own says from where packages come, uv is told the same.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from semblend_tools.bootstrap import tool_python
from semblend_tools.clone import Clone
from semblend_tools.processes import output_of

_SECTIONS = ("global", "install", ":env:")
"""Of pip's configuration; a later one wins."""


def uv(clone: Clone) -> Path:
    return tool_python(clone).with_name("uv")


def uv_settings(clone: Clone) -> dict[str, str]:
    """Environment variables for uv, and for a hatch that calls it. What the caller's environment says stands."""
    listed = output_of(clone, [tool_python(clone), "-m", "pip", "config", "list"])
    return {name: value for name, value in as_pip_is_configured(listed).items() if name not in os.environ}


def as_pip_is_configured(listed: str) -> dict[str, str]:
    """``listed``: by `pip config list`."""
    configured = _values(listed)
    # As pip does it, the newest of all indexes is taken.
    settings = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for name, variable, between in (
        ("index-url", "UV_DEFAULT_INDEX", " "),
        ("extra-index-url", "UV_INDEX", " "),
        ("find-links", "UV_FIND_LINKS", ","),
        ("trusted-host", "UV_INSECURE_HOST", " "),
        ("cert", "SSL_CERT_FILE", " "),
        ("timeout", "UV_HTTP_TIMEOUT", " "),
        ("default-timeout", "UV_HTTP_TIMEOUT", " "),
    ):
        if words := configured.get(name, "").split():
            settings[variable] = between.join(words)
    if configured.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        settings["UV_NO_INDEX"] = "1"
    return settings


def _values(listed: str) -> Mapping[str, str]:
    """`section.name='value'`, one a line."""
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listed.splitlines():
        key, equals, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if equals and section in found:
            found[section][name] = " ".join(shlex.split(value.replace("\\n", " ")))
    return {name: value for section in _SECTIONS for name, value in found[section].items()}
