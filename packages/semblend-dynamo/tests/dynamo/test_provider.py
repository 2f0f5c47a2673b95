"""The provider interface that Dynamo's KV router may call one day."""

import asyncio

import numpy as np
import pytest

from semblend_core import Settings
from semblend_dynamo.dynamo.provider import SemBlendKvCacheProvider
from semblend_dynamo.dynamo.requests import RequestReader
from semblend_dynamo.placement import DonorBook

DOCUMENT = list(range(1000, 1600))


@pytest.fixture
def provider() -> SemBlendKvCacheProvider:
    book = DonorBook(Settings(lookup_budget_ms=600_000))
    return SemBlendKvCacheProvider(RequestReader("model", 16).namespace("tenant", None), book)


def test_a_registered_donor_is_matched_until_it_is_evicted(provider: SemBlendKvCacheProvider) -> None:
    async def scenario() -> None:
        donor = [1, 2, 3, *DOCUMENT]
        await provider.register_donor("donor", donor)
        prompt = [*range(40), *DOCUMENT]
        match = await provider.find_semantic_match(prompt)
        assert match is not None
        assert (match.donor_id, list(match.donor_token_ids)) == ("donor", donor)
        assert match.similarity == pytest.approx(600 / 640)
        assert match.metadata == {"spans": [(40, 3, 600)]}
        provider.on_eviction("donor")
        assert await provider.find_semantic_match(prompt) is None

    asyncio.run(scenario())


def test_of_two_donors_the_one_that_holds_more_is_named(provider: SemBlendKvCacheProvider) -> None:
    async def scenario() -> None:
        rest = np.random.default_rng(1).integers(5000, 9000, 300).tolist()
        await provider.register_donor("more", DOCUMENT)
        await provider.register_donor("less", rest)
        match = await provider.find_semantic_match([*rest, *DOCUMENT])
        assert match is not None, provider._book.provider.stats()
        assert match.donor_id == "more"

    asyncio.run(scenario())


def test_nothing_alike_is_no_match(provider: SemBlendKvCacheProvider) -> None:
    async def scenario() -> None:
        await provider.register_donor("donor", DOCUMENT)
        assert await provider.find_semantic_match(list(range(9000, 9500)), prompt_text="other") is None

    asyncio.run(scenario())
