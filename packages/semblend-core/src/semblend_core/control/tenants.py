"""The commands about tenants, as a process that holds something of them carries them out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from semblend_core.contract import TenantReport

_TENANT = re.compile(r"[0-9a-f]{16}")

OfTenant: TypeAlias = Callable[[str], TenantReport]


class WrongCommandError(ValueError):
    """What was asked is not understood."""


class TenantCommands:
    """``{"command": "purge" or "show", "tenant": 16 hex digits}``. Whoever asks has hashed the salt already."""

    def __init__(self, purge: OfTenant, show: OfTenant) -> None:
        """Both are given a tenant, and called on the control's own thread."""
        self._commands = {"purge": purge, "show": show}

    def __call__(self, asked: Any) -> dict[str, Any]:
        asked = asked if isinstance(asked, dict) else {}
        name, tenant = asked.get("command"), asked.get("tenant")
        command = self._commands.get(name) if isinstance(name, str) else None
        if command is None:
            raise WrongCommandError(f"a command is one of {', '.join(sorted(self._commands))}")
        if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
            raise WrongCommandError("`tenant` is missing, or is not the 16 hex digits that stand for a salt")
        return command(tenant).as_dict()
