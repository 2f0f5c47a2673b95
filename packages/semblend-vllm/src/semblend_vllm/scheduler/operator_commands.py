"""What an operator asks of a tenant. Any thread."""

from __future__ import annotations

import threading

from semblend_core import TenantReport, tenant_of_salt
from semblend_core.serving import Tenants
from semblend_vllm.neighbour import Neighbour
from semblend_vllm.scheduler.orders import StepOrders


class OperatorCommands:
    """``turn``: held while vLLM's scheduler is at work."""

    def __init__(self, tenants: Tenants, orders: StepOrders, neighbour: Neighbour, turn: threading.RLock) -> None:
        self._tenants, self._orders, self._neighbour, self._turn = tenants, orders, neighbour, turn

    def purge(self, salt: str | None) -> TenantReport:
        """Drop all that came with this salt, and wait until it is gone: what there was.

        Requests under way are served to their end and leave nothing. Workers in other processes drop their part at
        the beginning of the next step.
        """
        tenant = tenant_of_salt(salt)
        return self.purge_tenant(tenant) + self._neighbour.purge(tenant)

    def purge_tenant(self, tenant: str) -> TenantReport:
        """The same for the scheduler's half alone."""
        with self._turn:
            found = self._tenants.begin_purge(tenant)
            self._orders.purge(tenant)  # Also for what a step under way is about to capture.
        self._tenants.finish_purge()
        return found

    def held_by(self, salt: str | None) -> TenantReport:
        """What is held of all that came with this salt, here and by a worker in this process."""
        tenant = tenant_of_salt(salt)
        return self.show_tenant(tenant) + self._neighbour.held_by(tenant)

    def show_tenant(self, tenant: str) -> TenantReport:
        """The same for the scheduler's half alone."""
        with self._turn:
            return self._tenants.held_by(tenant)
