"""The life of one request: read, choose, ask, pass on."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from semblend_core import tenant_of_salt
from semblend_dynamo.gateway.answering import Told, pass_on, refuse
from semblend_dynamo.gateway.bodies import (
    LARGE_BODY,
    BodyReader,
    ClientLeftError,
    Receive,
    Scope,
    Send,
    parse_object,
)
from semblend_dynamo.gateway.errors import Refusal
from semblend_dynamo.gateway.headers import RawHeaders, to_replica
from semblend_dynamo.gateway.identity import Caller, Salting, bounded_name, caller_of
from semblend_dynamo.gateway.leaving import UntilClientLeaves
from semblend_dynamo.gateway.upstream import Answer, AttemptFailedError, Failure, Upstream
from semblend_dynamo.router.admission import Admission
from semblend_dynamo.router.asked import Asked, Reading
from semblend_dynamo.router.backends import Backend, Target
from semblend_dynamo.router.decisions import Decision, DecisionLog
from semblend_dynamo.router.metrics import RouterMetrics
from semblend_dynamo.router.policies import Choice, Policy
from semblend_dynamo.router.replicas import Replica, least_busy
from semblend_dynamo.router.sessions import Sessions

logger = logging.getLogger(__name__)

_SHORT_PROMPT = 4096
"""Tokens up to which a landing is remembered on the loop itself."""
_MOST_TO_LEARN = 256
"""Landings that may wait to be remembered; further ones are not."""
_EMPTY_FLEET_WAIT_S = 0.05


@dataclass(frozen=True)
class Served:
    """An answer, and whom it came from."""

    answer: Answer
    replica: Replica | None
    attempts: int


@dataclass
class Course:
    """What has become known of one request so far."""

    caller: Caller
    started: float
    decision: Decision | None = None
    status: int = 499
    """What the client got; 499, as nginx has it: it was gone before."""


class CompletionService:
    """An ASGI application for ``/v1/chat/completions`` and ``/v1/completions``."""

    def __init__(
        self,
        *,
        backend: Backend,
        policy: Policy,
        upstream: Upstream,
        bodies: BodyReader,
        admission: Admission,
        sessions: Sessions,
        salting: Salting,
        reading: Reading,
        stall_s: float,
        timeout_s: float,
        replica_in_flight: int,
        tenant_header: str,
        route_headers: bool,
        decisions: DecisionLog,
        metrics: RouterMetrics,
    ) -> None:
        self._backend = backend
        self._policy = policy
        self._upstream = upstream
        self._bodies = bodies
        self._admission = admission
        self._sessions = sessions
        self._salting = salting
        self._reading = reading
        self._stall_s = stall_s
        self._timeout_s = timeout_s
        self._replica_in_flight = replica_in_flight
        self._tenant_header = tenant_header
        self._route_headers = route_headers
        self._decisions = decisions
        self._metrics = metrics
        self._learner = ThreadPoolExecutor(1, thread_name_prefix="semblend-router-learner")
        self._to_learn = 0
        # A client may send the same id twice at once: what is remembered of a request needs a name of its own.
        self._numbers = itertools.count()

    def close(self) -> None:
        self._learner.shutdown(wait=True, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        course = Course(caller_of(scope["headers"], self._tenant_header), time.perf_counter())
        begun = False

        async def watched_send(message: Any) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun, course.status = True, message["status"]
            await send(message)

        try:
            async with asyncio.timeout(self._timeout_s):
                await self._serve(scope, receive, watched_send, course)
        except ClientLeftError:
            self._metrics.left.inc()
        except Refusal as refusal:
            await refuse(refusal, watched_send, self._route(course))
        except TimeoutError:
            # Behind the first byte nothing can be said any more: the connection ends without the answer's end.
            if not begun:
                late = Refusal(504, "timeout", f"the request took longer than {self._timeout_s:g} s")
                await refuse(late, watched_send, self._route(course))
        finally:
            self._metrics.requests.labels(str(course.status)).inc()
            if course.decision is not None:
                course.decision.status = course.status

    async def _serve(self, scope: Scope, receive: Receive, send: Send, course: Course) -> None:
        body = await self._bodies.read(scope, receive)
        try:
            async with UntilClientLeaves(receive):
                await self._admission.enter()
                try:
                    asked, sent = await self._read(body, course.caller)
                    await self._place(scope, send, asked, sent, course)
                finally:
                    self._admission.leave()
        finally:
            self._bodies.give_back(body)

    async def _read(self, body: bytes, caller: Caller) -> tuple[Asked, bytes]:
        """The request as policies see it, and the body as replicas get it."""
        if len(body) > LARGE_BODY:
            return await asyncio.to_thread(self._read_now, body, caller)
        return self._read_now(body, caller)

    def _read_now(self, body: bytes, caller: Caller) -> tuple[Asked, bytes]:
        try:
            return self._understood(body, caller)
        except RecursionError:
            # What could just be parsed may still be too deep to be written or cut.
            raise Refusal(400, "malformed_json", "the body is nested too deeply") from None

    def _understood(self, body: bytes, caller: Caller) -> tuple[Asked, bytes]:
        fields = parse_object(body)
        if self._salting.apply(fields, caller):
            body = json.dumps(fields).encode()
        model = fields.get("model")
        asked = Asked(
            request_id=f"r{next(self._numbers)}",
            model=bounded_name(model) if isinstance(model, str) else "",
            circle=self._salting.circle_of(fields, caller),
            session=caller.session,
            body=fields,
            reading=self._reading,
        )
        _ = asked.token_ids, asked.token_weights  # Here, where it may be a thread's work.
        return asked, body

    async def _place(self, scope: Scope, send: Send, asked: Asked, body: bytes, course: Course) -> None:
        started = time.perf_counter()
        ready = await self._ready()
        choice = await self._choose(asked, ready)
        took = time.perf_counter() - started
        self._metrics.deciding.observe(took)
        course.decision = self._note(asked, choice, took, course.caller)
        landed: Replica | None = None
        try:
            wants_stream = bool(asked.body.get("stream"))
            to_prefill = asked.tokens - choice.held_tokens
            served = await self._ask(scope, choice, ready, body, to_prefill, wants_stream, course.decision)
            landed = served.replica
            await self._answer(served, send, asked, choice, course)
        finally:
            self._policy.ended(asked, choice, landed)

    async def _ready(self) -> list[Replica]:
        """Those to choose from: with room, else any that lives, else all: a request is refused by replicas only."""
        replicas = self._backend.replicas
        if not replicas:
            await asyncio.sleep(_EMPTY_FLEET_WAIT_S)
            replicas = self._backend.replicas
        if not replicas:
            raise Refusal(503, "no_replicas", "there are no replicas", {"retry-after": "1"})
        alive = [each for each in replicas if each.available] or list(replicas)
        return [each for each in alive if each.in_flight < self._replica_in_flight] or alive

    async def _choose(self, asked: Asked, ready: Sequence[Replica]) -> Choice:
        kept = self._sessions.find(asked, ready)
        if kept is not None:
            return Choice(kept, "session_affinity", "session")
        try:
            return await self._policy.choose(asked, ready)
        except Exception as error:
            # A request is served whatever becomes of its placement. The message could quote the prompt.
            logger.error("a replica could not be chosen by %s: %s", self._policy.name, type(error).__name__)
            return Choice(least_busy(ready), "fallback", "error")

    def _note(self, asked: Asked, choice: Choice, took: float, caller: Caller) -> Decision:
        decision = Decision(
            request_id=caller.request_id,
            tenant="" if asked.circle is None else tenant_of_salt(asked.circle),
            # Half a surrogate pair is JSON, and no page could show it.
            model=asked.model[:80].encode("utf-8", "replace").decode(),
            tokens=asked.tokens,
            chosen=choice.replica.name,
            path=choice.path,
            reason=choice.reason,
            similarity=choice.similarity,
            decided_ms=took * 1000,
        )
        self._decisions.add(decision)
        return decision

    async def _ask(
        self,
        scope: Scope,
        choice: Choice,
        ready: Sequence[Replica],
        body: bytes,
        tokens: int,
        wants_stream: bool,
        decision: Decision,
    ) -> Served:
        """Until somebody answers. Nothing has been sent to the client, so every failure leaves room for another try."""
        failures: list[Failure] = []
        others = sorted(self._backend.replicas, key=lambda each: (each not in ready, each.tokens_in_flight))
        for target in self._backend.targets(choice.replica, others):
            decision.attempts += 1
            counted = target.replica or choice.replica
            counted.begin(tokens)
            try:
                headers = to_replica(scope["headers"], target.headers)
                url = target.url + scope["path"]
                answer = await self._upstream.attempt(url, headers, body, wants_stream=wants_stream)
            except AttemptFailedError as error:
                counted.end()
                if target.replica is None:
                    counted.breaker.gave_up()  # The gateway chose: the one that was meant may not have been asked.
                self._backend.failed(target, error)
                self._metrics.retries.labels(error.failure.value).inc()
                failures.append(error.failure)
                continue
            except BaseException:
                counted.end()
                counted.breaker.gave_up()
                raise
            finally:
                counted.prefilled(tokens)
            return self._landed(answer, target, counted, decision.attempts)
        raise _refusal_of(failures)

    def _landed(self, answer: Answer, target: Target, counted: Replica, attempts: int) -> Served:
        replica = self._backend.landed(target, answer.headers)
        if replica is not None and replica is not counted:
            # The load is where the answer comes from.
            counted.end()
            counted.breaker.gave_up()
            replica.begin(0)
        return Served(answer, replica, attempts)

    async def _answer(self, served: Served, send: Send, asked: Asked, choice: Choice, course: Course) -> None:
        decision = course.decision
        assert decision is not None
        counted = served.replica or choice.replica
        told: Told | None = None
        try:
            async with served.answer as answer:
                counted.answered()
                if served.replica is not None:
                    decision.landed = served.replica.name
                    if answer.status == 200:
                        self._learn(asked, choice, served.replica)
                self._metrics.first_byte.observe(time.perf_counter() - course.started)
                told = await pass_on(answer, send, self._route(course), self._stall_s)
        finally:
            counted.end()
            if told is not None:
                self._count(told, counted, choice, decision)

    def _learn(self, asked: Asked, choice: Choice, replica: Replica) -> None:
        self._metrics.placements.labels(replica.name, choice.path, choice.reason).inc()
        if replica is not choice.replica:
            self._metrics.off_target.inc()
        self._sessions.note(asked, replica)
        loop = asyncio.get_running_loop()
        if asked.tokens <= _SHORT_PROMPT:
            # Half a millisecond here. A thread would take the interpreter from the loop for far longer than that.
            loop.call_soon(self._learn_now, asked, replica)
        elif self._to_learn < _MOST_TO_LEARN:
            self._to_learn += 1
            learnt = loop.run_in_executor(self._learner, self._policy.landed, asked, replica)
            learnt.add_done_callback(self._has_learnt)

    def _learn_now(self, asked: Asked, replica: Replica) -> None:
        try:
            self._policy.landed(asked, replica)
        except Exception as error:
            logger.error("a prompt could not be remembered: %s", type(error).__name__)

    def _has_learnt(self, learnt: asyncio.Future[None]) -> None:
        self._to_learn -= 1
        if not learnt.cancelled():
            learnt.exception()  # Taken note of: a prompt that cannot be remembered is served all the same.

    def _count(self, told: Told, replica: Replica, choice: Choice, decision: Decision) -> None:
        if told.broke_off:
            self._metrics.broke_off.inc()
        if told.prompt_tokens is not None:
            replica.prompt_tokens += told.prompt_tokens
            self._metrics.prompt_tokens.labels(choice.path).inc(told.prompt_tokens)
        if told.cached_tokens is not None:
            decision.cached_tokens = told.cached_tokens
            replica.cached_tokens += told.cached_tokens
            self._metrics.cached_tokens.labels(choice.path).inc(told.cached_tokens)

    def _route(self, course: Course) -> RawHeaders:
        headers = [(b"x-request-id", course.caller.request_id.encode())]
        decision = course.decision
        if not self._route_headers or decision is None or decision.landed is None:
            return headers
        path, reason = decision.path, decision.reason
        if decision.landed != decision.chosen:
            path, reason = "fallback", "failover"  # It was placed, and served elsewhere: nobody chose that for its KV.
        headers += [
            (b"x-semblend-replica", decision.landed.encode()),
            (b"x-semblend-routing-worker", decision.landed.encode()),
            (b"x-semblend-routing-path", path.encode()),
            (b"x-semblend-routing-reason", reason.encode()),
        ]
        if decision.similarity is not None:
            headers.append((b"x-semblend-similarity", f"{decision.similarity:.3f}".encode()))
        return headers


def _refusal_of(failures: Sequence[Failure]) -> Refusal:
    if failures and all(failure is Failure.BUSY for failure in failures):
        return Refusal(429, "overloaded", "every replica is busy", {"retry-after": "1"})
    if failures and all(failure is Failure.TIMEOUT for failure in failures):
        return Refusal(504, "replica_timeout", "no replica answered in time")
    return Refusal(502, "no_answer", "no replica gave an answer")
