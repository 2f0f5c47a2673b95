"""A request whose worker dies, at every point of its answer. Dynamo's router is stood in for by a script of streams."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from semblend_core import Settings
from semblend_dynamo.dynamo import serving as serving_module
from semblend_dynamo.dynamo.deciding import Decider
from semblend_dynamo.dynamo.keeping import DonorKeeper
from semblend_dynamo.dynamo.requests import Preprocessed, RequestReader
from semblend_dynamo.dynamo.residency import Residency
from semblend_dynamo.dynamo.serving import Serving
from semblend_dynamo.dynamo.shared_donors import SharedDonors
from semblend_dynamo.placement import Account, DonorBook, PlacementSettings

LOST = ValueError("Unavailable: Stream ended before generation completed")
END = {"token_ids": [], "finish_reason": "length"}


def tokens(*ids: int) -> dict[str, Any]:
    return {"token_ids": list(ids)}


class Script:
    """One stream for each attempt. An error in it is the worker's death."""

    def __init__(self, *streams: list[Any]) -> None:
        self._streams = list(streams)
        self.sent: list[Preprocessed] = []

    async def generate_from_request(self, request: Preprocessed) -> AsyncIterator[Any]:
        self.sent.append(request)
        return self._play(self._streams.pop(0))

    async def _play(self, stream: list[Any]) -> AsyncIterator[Any]:
        for each in stream:
            if isinstance(each, Exception):
                raise each
            yield dict(each)

    async def get_overlap_scores(self, token_ids: list[int], **options: Any) -> dict[str, Any]:
        return {"workers": []}

    async def get_potential_loads(self, token_ids: list[int], **options: Any) -> list[dict[str, int]]:
        return []


class Context:
    def id(self) -> str:
        return "request"


def served(script: Script, account: Account, **changes: Any) -> list[Any]:
    """What the client gets of an answer of three tokens."""
    book, settings = DonorBook(Settings()), PlacementSettings()
    decider = Decider(book, Residency(script, list, 16), settings)
    keeper = DonorKeeper(book, SharedDonors(book, lambda event: None), account, new_tokens=64)
    serving = Serving(script, RequestReader("model", 16), decider, keeper, book, account, settings)
    request = {"token_ids": [1, 2], "stop_conditions": {"max_tokens": 3}, **changes}

    async def collect() -> list[Any]:
        return [chunk async for chunk in serving.generate(request, Context())]

    try:
        return asyncio.run(collect())
    finally:
        keeper.close()


@pytest.mark.parametrize("streams", [[[LOST], [LOST]], [[]]], ids=["twice", "without a word"])
def test_before_the_first_token_it_is_sent_again(streams: list[list[Any]]) -> None:
    script, account = Script(*streams, [tokens(7, 8, 9), END]), Account()
    assert served(script, account) == [tokens(7, 8, 9), END]
    assert account.report()["events"] == {"sent_again": len(streams)}


@pytest.mark.parametrize("attempts", [[], [LOST]], ids=["at once", "after the dead one again"])
def test_in_the_middle_it_is_continued_and_counted_once(attempts: list[Any]) -> None:
    script, account = Script([tokens(7), tokens(8), LOST], *([each] for each in attempts), [tokens(9), END]), Account()
    assert served(script, account) == [tokens(7), tokens(8), tokens(9), END]
    assert script.sent[-1] == {"token_ids": [1, 2, 7, 8], "stop_conditions": {"max_tokens": 1}}
    assert account.report()["events"] == {"continued_elsewhere": 1}


@pytest.mark.parametrize(
    "stream",
    [
        [tokens(7, 8), tokens(9), LOST],
        [tokens(7, 8), tokens(9)],
        [tokens(7, 8), tokens(9), END, LOST],
    ],
    ids=["before it says so", "without saying so", "behind it"],
)
def test_behind_its_last_token_the_answer_is_whole(stream: list[Any]) -> None:
    script, account = Script(stream), Account()
    assert served(script, account) == [tokens(7, 8), tokens(9), END]
    assert len(script.sent) == 1
    assert account.report()["events"] == {}


def test_an_answer_that_ended_by_itself_is_not_continued() -> None:
    stop = {"token_ids": [8], "finish_reason": "stop"}
    script, account = Script([tokens(7), stop, LOST]), Account()
    assert served(script, account) == [tokens(7), stop]
    assert account.report()["events"] == {}


def test_of_several_answers_the_error_is_passed_on() -> None:
    """One of them ended, or had all its tokens: the others may be missing."""
    for last in (tokens(9), END):
        script = Script([tokens(7, 8, 9), last, LOST])
        with pytest.raises(ValueError, match="Unavailable"):
            served(script, Account(), sampling_options={"n": 2})
        assert len(script.sent) == 1


def test_what_may_come_with_the_last_word_is_not_left_out() -> None:
    script = Script([tokens(7, 8, 9), LOST])
    with pytest.raises(ValueError, match="Unavailable"):
        served(script, Account(), output_options={"prompt_logprobs": 1})


def test_a_worker_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "PAUSE_S", 0.0)
    script = Script(*([LOST] for _ in range(serving_module.MOST_FAILURES + 1)))
    with pytest.raises(ValueError, match="Unavailable"):
        served(script, Account())
    assert len(script.sent) == serving_module.MOST_FAILURES + 1
