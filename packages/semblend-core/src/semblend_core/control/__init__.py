"""How an operator speaks with running engines: Unix sockets in a folder that only their owner may enter.

Each process that holds something of tenants has a socket there: a ``ControlServer`` with ``TenantCommands``. The
command (``python -m semblend_core.control``) and an engine's HTTP routes ask them all, by ``ask_engines``.
"""

from semblend_core.control.client import ControlError, ask_engines, asked_of_engines
from semblend_core.control.server import ControlServer, open_control
from semblend_core.control.tenants import TenantCommands
from semblend_core.control.turns import NoTurnError, Turns

__all__ = [
    "ControlError",
    "ControlServer",
    "NoTurnError",
    "TenantCommands",
    "Turns",
    "ask_engines",
    "asked_of_engines",
    "open_control",
]
