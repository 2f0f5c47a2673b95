"""What an operator can ask of a running router: its report, a purge, a new generation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from semblend_dynamo.dynamo.events import is_tenant
from semblend_dynamo.dynamo.keeping import DonorKeeper
from semblend_dynamo.dynamo.shared_donors import SharedDonors


class Control:
    def __init__(self, report: Callable[[], dict[str, Any]], keeper: DonorKeeper, donors: SharedDonors) -> None:
        self._report = report
        self._keeper = keeper
        self._donors = donors

    async def answer(self, request: Any, context: Any) -> AsyncIterator[dict[str, Any]]:
        """Dynamo's handler of the endpoint ``control``. The second parameter must have this name."""
        yield await self._answer(request if isinstance(request, dict) else {})

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        order = request.get("order")
        if order == "report":
            return self._report()
        if order == "purge":
            tenant = request.get("tenant")
            if not (is_tenant(tenant) or (tenant is None and request.get("all") is True)):
                return {"error": 'a purge names a tenant (its id of 16 hexadecimal digits), or says {"all": true}'}
            purged = await asyncio.wrap_future(self._keeper.do(lambda: self._donors.purge(tenant)))
            return {"purged": purged}
        if order == "reset":
            return {"generation": await asyncio.wrap_future(self._keeper.do(self._donors.reset))}
        return {"error": f"order must be report, purge or reset, got {order!r}"}
