"""How router replicas hear of each other's donors: every replica serves a stream of events, and follows the others'.

The streams go over Dynamo's request plane (TCP, or NATS where that is the request plane), and discovery says who the
others are. A stream begins with all that its replica knows, so one that starts late, or was cut off, catches up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from semblend_dynamo.dynamo.events import DonorEvent, EventError
from semblend_dynamo.dynamo.shared_donors import SharedDonors
from semblend_dynamo.placement import Account

logger = logging.getLogger(__name__)

BATCH = 16
"""Events of one message: a donor of 4,000 tokens takes 22 kB."""
WAITING = 4096
"""Events that may wait for a slow follower. Beyond that its stream ends, and it begins anew."""
LOOK_EVERY_S = 0.5
LISTED_EVERY_S = 0.02


class PeerClient(Protocol):
    """What is used of ``dynamo.runtime.Client``."""

    def instance_ids(self) -> list[int]: ...

    async def direct(self, request: Any, instance_id: int, annotated: bool) -> AsyncIterator[Any]: ...


class EventStreams:
    """The replica's own events, on their way to those who follow it. Published from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._followers: set[asyncio.Queue[DonorEvent | None]] = set()
        self._donors: SharedDonors | None = None

    def attach(self, donors: SharedDonors) -> None:
        """On the event loop, before the first request."""
        self._loop = asyncio.get_running_loop()
        self._donors = donors

    def publish(self, event: DonorEvent) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hand_out, event)

    async def follow(self, request: Any, context: Any) -> AsyncIterator[dict[str, Any]]:
        """Dynamo's handler of the endpoint. The second parameter must have this name."""
        assert self._donors is not None
        queue: asyncio.Queue[DonorEvent | None] = asyncio.Queue(WAITING)
        # Before the snapshot, so that nothing falls between the two; what is in both does no harm.
        self._followers.add(queue)
        try:
            async for message in self._snapshot(self._donors):
                yield message
            yield {"events": [], "caught_up": True}
            while True:
                event = await queue.get()
                if event is None:
                    return
                yield {"events": [event.encode()]}
        finally:
            self._followers.discard(queue)

    async def _snapshot(self, donors: SharedDonors) -> AsyncIterator[dict[str, Any]]:
        batch = []
        for event in donors.snapshot():
            batch.append(event.encode())
            if len(batch) == BATCH:
                yield {"events": batch}
                batch = []
                await asyncio.sleep(0)  # requests go first
        yield {"events": batch}

    def close(self) -> None:
        for queue in self._followers:
            _end(queue)

    def _hand_out(self, event: DonorEvent) -> None:
        for queue in self._followers:
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                logger.warning("a replica follows too slowly; its stream is ended, and it begins anew")
                _end(queue)


def _end(queue: asyncio.Queue[DonorEvent | None]) -> None:
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(None)


class Peers:
    """Follows every other replica that discovery lists."""

    def __init__(
        self, client: PeerClient, own_id: int, told: Callable[[Sequence[DonorEvent]], Awaitable[None]], account: Account
    ) -> None:
        self._client = client
        self._own_id = own_id
        self._told = told
        self._account = account
        self._following: dict[int, asyncio.Task[None]] = {}
        self._caught_up: dict[int, asyncio.Event] = {}
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._look_for_peers())

    async def catch_up(self, timeout_s: float) -> bool:
        """Wait until the replicas that are listed have told what they know. False: not in time.

        One that cannot be reached is not waited for. This replica's own entry must be listed first: before that,
        discovery has not told yet who else is there.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._own_id not in self._client.instance_ids():
                    await asyncio.sleep(LISTED_EVERY_S)
                self._begin_following()
                await asyncio.gather(*(told.wait() for told in self._caught_up.values()))
        except TimeoutError:
            return False
        return True

    @property
    def followed(self) -> list[int]:
        return sorted(self._following)

    async def stop(self) -> None:
        tasks = [*self._following.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_for_peers(self) -> None:
        while True:
            self._begin_following()
            await asyncio.sleep(LOOK_EVERY_S)

    def _begin_following(self) -> None:
        listed = set(self._listed())
        for peer in listed - set(self._following):
            self._caught_up[peer] = asyncio.Event()
            self._following[peer] = asyncio.get_running_loop().create_task(self._follow(peer))
        for peer in [peer for peer, task in self._following.items() if task.done() or peer not in listed]:
            self._following.pop(peer).cancel()
            self._caught_up.pop(peer)

    def _listed(self) -> Iterable[int]:
        return (peer for peer in self._client.instance_ids() if peer != self._own_id)

    async def _follow(self, peer: int) -> None:
        """Ends when the stream does; if the peer is still listed it is followed anew."""
        caught_up = self._caught_up[peer]
        try:
            async for message in await self._client.direct({}, peer, annotated=False):
                await self._take(message)
                if message.get("caught_up"):
                    caught_up.set()
        except Exception as error:
            logger.info("replica %x is not heard (%s)", peer, type(error).__name__)
        finally:
            caught_up.set()  # there is nothing more to wait for

    async def _take(self, message: Any) -> None:
        events = []
        for encoded in message.get("events") or ():
            try:
                events.append(DonorEvent.decode(encoded))
            except EventError as error:
                logger.warning("an event of another replica is left out: %s", error)
                self._account.count("event_unreadable")
        self._account.count("event_received", len(events))
        # Waited for: whoever tells much is read slowly, and nothing is dropped.
        await self._told(events)
