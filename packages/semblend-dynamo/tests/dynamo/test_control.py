"""Orders of an operator that cannot be meant are refused, and change nothing."""

import asyncio
from typing import Any

import pytest

from semblend_core import Settings, as_token_ids
from semblend_dynamo.dynamo.control import Control
from semblend_dynamo.dynamo.keeping import DonorKeeper
from semblend_dynamo.dynamo.requests import RequestReader
from semblend_dynamo.dynamo.shared_donors import NOWHERE, SharedDonors
from semblend_dynamo.placement import Account, DonorBook

NAMESPACE = RequestReader("model", 16).namespace("tenant", None)


@pytest.fixture
def ask() -> Any:
    book = DonorBook(Settings())
    donors = SharedDonors(book, lambda event: None)
    keeper = DonorKeeper(book, donors, Account(), new_tokens=32)
    control = Control(lambda: {"donors": len(donors)}, keeper, donors)
    assert donors.register(NAMESPACE, "donor", as_token_ids(range(200)), NOWHERE, None)

    async def answer(request: Any) -> dict[str, Any]:
        [only] = [each async for each in control.answer(request, None)]
        return only

    yield lambda request: asyncio.run(answer(request))
    keeper.close()
    book.close()


@pytest.mark.parametrize("tenant", ["", NAMESPACE.salt_digest[:1], 7, ["a"], NAMESPACE.salt_digest.upper() + "0"])
def test_a_purge_names_one_tenant_or_says_all(ask: Any, tenant: object) -> None:
    """Part of a tenant's id would be the beginning of many, and an empty one that of all."""
    assert "16 hexadecimal digits" in ask({"order": "purge", "tenant": tenant})["error"]
    assert "16 hexadecimal digits" in ask({"order": "purge", "tenant": tenant, "all": True})["error"]
    assert ask({"order": "report"}) == {"donors": 1}
    assert ask({"order": "purge", "tenant": NAMESPACE.salt_digest}) == {"purged": 1}


def test_an_order_that_is_none_is_refused(ask: Any) -> None:
    for request in (None, [], {"order": "dance"}, {}):
        assert "order must be report, purge or reset" in ask(request)["error"]
