"""How a replica follows the others. Streams and queues are real; only Dynamo's transport is left out."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest

from semblend_core import Settings, as_token_ids
from semblend_dynamo.dynamo import peers as peers_module
from semblend_dynamo.dynamo.events import DonorEvent
from semblend_dynamo.dynamo.peers import EventStreams, Peers
from semblend_dynamo.dynamo.requests import RequestReader
from semblend_dynamo.dynamo.residency import WorkerRank
from semblend_dynamo.dynamo.shared_donors import SharedDonors
from semblend_dynamo.placement import Account, DonorBook

NAMESPACE = RequestReader("model", 16).namespace("tenant", None)


class Replica:
    def __init__(self) -> None:
        self.streams = EventStreams()
        self.donors = SharedDonors(DonorBook(Settings()), self.streams.publish)
        self.account = Account()
        self.streams.attach(self.donors)

    def register(self, number: int) -> None:
        tokens = as_token_ids(np.random.default_rng(number).integers(0, 1000, 80))
        self.donors.register(NAMESPACE, f"donor-{number}", tokens, WorkerRank(1, 0), None)

    async def told(self, events: Sequence[DonorEvent]) -> None:
        for event in events:
            self.donors.apply(event)


class Wire:
    """Replicas by instance id, each reached by calling its handler."""

    def __init__(self, replicas: dict[int, Replica]) -> None:
        self.replicas = replicas

    def instance_ids(self) -> list[int]:
        return list(self.replicas)

    async def direct(self, request: Any, instance_id: int, annotated: bool) -> AsyncIterator[Any]:
        return self.replicas[instance_id].streams.follow(request, None)


async def until(holds: Any) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


def test_a_late_joiner_has_all_donors_and_hears_of_new_ones() -> None:
    async def scenario() -> None:
        first, late = Replica(), Replica()
        for number in range(40):
            first.register(number)
        peers = Peers(Wire({1: first, 2: late}), 2, late.told, late.account)
        peers.start()
        assert await peers.catch_up(30)
        assert late.donors.known() == first.donors.known()
        first.register(99)
        await until(lambda: len(late.donors) == 41)
        assert peers.followed == [1]
        await peers.stop()

    asyncio.run(scenario())


def test_alone_there_is_nothing_to_wait_for() -> None:
    async def scenario() -> None:
        replica = Replica()
        assert await Peers(Wire({1: replica}), 1, replica.told, replica.account).catch_up(0.01)

    asyncio.run(scenario())


def test_who_is_not_listed_yet_waits_to_be_and_a_dead_replica_is_not_waited_for() -> None:
    """Discovery lists a dead replica for a while, and a new one a moment late."""

    class Dead(Wire):
        listed: tuple[int, ...] = ()

        def instance_ids(self) -> list[int]:
            return list(self.listed)

        async def direct(self, request: Any, instance_id: int, annotated: bool) -> AsyncIterator[Any]:
            if instance_id == 9:
                raise ConnectionError("nobody there")
            return await super().direct(request, instance_id, annotated)

    async def scenario() -> None:
        first, late = Replica(), Replica()
        first.register(1)
        wire = Dead({1: first, 2: late})
        peers = Peers(wire, 2, late.told, late.account)
        waiting = asyncio.ensure_future(peers.catch_up(30))
        await asyncio.sleep(0.1)
        assert not waiting.done(), "nobody is listed: nothing is known of the others"
        wire.listed = (9, 1, 2)
        assert await waiting
        assert len(late.donors) == 1
        await peers.stop()

    asyncio.run(scenario())


def test_a_stream_that_ends_is_followed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "LOOK_EVERY_S", 0.01)

    async def scenario() -> None:
        first, second = Replica(), Replica()
        peers = Peers(Wire({1: first, 2: second}), 2, second.told, second.account)
        peers.start()
        await peers.catch_up(30)
        first.streams.close()
        first.register(1)
        await until(lambda: len(second.donors) == 1)
        await peers.stop()

    asyncio.run(scenario())


def test_a_slow_follower_is_cut_off_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(peers_module, "WAITING", 4)

    async def scenario() -> None:
        first, slow = Replica(), Replica()
        gate = asyncio.Event()

        async def told_slowly(events: Sequence[DonorEvent]) -> None:
            if events and len(slow.donors):
                await gate.wait()
            await slow.told(events)

        peers = Peers(Wire({1: first, 2: slow}), 2, told_slowly, slow.account)
        peers.start()
        await peers.catch_up(30)
        for number in range(30):
            first.register(number)
            await asyncio.sleep(0)
        gate.set()
        await until(lambda: slow.donors.known() == first.donors.known())
        await peers.stop()

    asyncio.run(scenario())


def test_an_unreadable_event_is_counted_and_left_out() -> None:
    class Garbled(Wire):
        async def direct(self, request: Any, instance_id: int, annotated: bool) -> AsyncIterator[Any]:
            async def stream() -> AsyncIterator[Any]:
                yield {"events": [{"schema_version": 9}], "caught_up": True}

            return stream()

    async def scenario() -> None:
        replica = Replica()
        peers = Peers(Garbled({1: replica, 2: replica}), 2, replica.told, replica.account)
        assert await peers.catch_up(30)
        assert replica.account.report()["events"] == {"event_received": 0, "event_unreadable": 1}
        await peers.stop()

    asyncio.run(scenario())
