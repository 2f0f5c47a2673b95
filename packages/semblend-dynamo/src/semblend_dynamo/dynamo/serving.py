"""The life of one request in the router: decide, send, send again if a worker dies, note what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, Protocol

from semblend_dynamo.dynamo.continuing import Progress, StreamCutOffError
from semblend_dynamo.dynamo.deciding import Decider, Verdict
from semblend_dynamo.dynamo.keeping import DonorKeeper
from semblend_dynamo.dynamo.requests import Preprocessed, RequestReader
from semblend_dynamo.dynamo.residency import WorkerRank
from semblend_dynamo.dynamo.taints import Taints
from semblend_dynamo.placement import Account, DonorBook, Placed, PlacementSettings

logger = logging.getLogger(__name__)

MOST_FAILURES = 5
"""How often a request is sent again, by Dynamo's own rule, before its error is passed on."""
PAUSE_S = 0.1
"""Added before each attempt after the second: discovery may still list a worker that died."""
HOPELESS = ("InvalidArgument", "Cancelled", "RouterQueueLimitExceeded")
"""Errors that another attempt would meet again."""


class Sender(Protocol):
    """What is used of ``dynamo.llm.KvRouter``."""

    async def generate_from_request(self, request: Preprocessed) -> AsyncIterator[Any]: ...


class Attempt(NamedTuple):
    request: Preprocessed
    worker: WorkerRank | None
    """The worker it names or prefers; None: Dynamo's own rule decides."""


class Serving:
    def __init__(
        self,
        sender: Sender,
        reader: RequestReader,
        decider: Decider,
        keeper: DonorKeeper,
        book: DonorBook,
        account: Account,
        settings: PlacementSettings,
        taints: Taints | None = None,
    ) -> None:
        self._sender = sender
        self._reader = reader
        self._decider = decider
        self._keeper = keeper
        self._book = book
        self._account = account
        self._settings = settings
        self._taints = taints

    async def generate(self, request: Preprocessed, context: Any) -> AsyncIterator[Any]:
        """Dynamo's handler. The second parameter must have this name."""
        verdict = await self._decide(context.id(), request)
        first = attempt = self._first_attempt(request, verdict)
        progress = Progress()
        begun: Attempt | None = None
        told: dict[str, Any] | None = None
        engine_data: dict[str, Any] = {}
        failures = 0
        cut_off = False
        try:
            while not progress.finished:
                try:
                    async for chunk in await self._sender.generate_from_request(attempt.request):
                        landed = _take_landing(chunk)
                        if begun is None:
                            begun = attempt
                            told = self._began(verdict, first, attempt, landed, chunk)
                        elif cut_off:
                            cut_off = False
                            self._account.count("continued_elsewhere")
                        if told is not None and isinstance(chunk, dict):
                            # The frontend shows the last engine data it gets: the worker's own must stay in it.
                            engine_data.update(_table(chunk.get("engine_data")))
                            chunk["engine_data"] = {**engine_data, "semblend": told}
                        progress.note(chunk)
                        yield chunk
                    if not progress.finished:
                        raise StreamCutOffError("the worker's answer was cut off")
                except Exception as error:
                    if progress.is_whole(request):
                        # Its worker died behind the last token: there is nothing left to ask another one for.
                        if not progress.finished:
                            yield {"token_ids": [], "finish_reason": "length"}
                        return
                    failures += 1
                    rest = request if begun is None else progress.rest_of(request)
                    if rest is None or failures > MOST_FAILURES or type(error).__name__ in HOPELESS:
                        raise
                    # The message may quote the request: the log gets the class.
                    logger.warning("a request was cut off (%s) and is sent again", type(error).__name__)
                    if begun is None:
                        self._account.count("sent_again")
                    else:
                        cut_off = True  # Counted once another worker goes on: the next may be the dead one again.
                    attempt = Attempt(rest, None)
                    await asyncio.sleep((failures - 1) * PAUSE_S)
        finally:
            if verdict is not None:
                placed = begun is not None and begun.worker is not None
                self._book.report(verdict.request.request_id, placed=placed, reason=verdict.finding.reason)

    async def _decide(self, request_id: str, request: Preprocessed) -> Verdict | None:
        """None: the request is not looked at, for a reason that is counted."""
        try:
            routed = self._reader.read(request_id, request)
            if routed.why_not is not None:
                self._account.count(routed.why_not)
                return None
            return await self._decider.decide(routed)
        except Exception as error:
            logger.error("no decision (%s); Dynamo's own rule decides", type(error).__name__)
            self._account.count("decision_failed")
            return None

    def _first_attempt(self, request: Preprocessed, verdict: Verdict | None) -> Attempt:
        if verdict is None or verdict.decision.worker is None or self._settings.mode == "off":
            return Attempt(request, None)
        worker = verdict.decision.worker
        routing = self._routing_to(worker)
        if routing is None:
            self._account.count("no_taint")
            return Attempt(request, None)
        placed = dict(request)
        placed["routing"] = {**_table(request.get("routing")), **routing}
        placed["extra_args"] = {**_table(request.get("extra_args")), "semblend": verdict.evidence()}
        return Attempt(placed, worker)

    def _routing_to(self, worker: WorkerRank) -> dict[str, Any] | None:
        """None: the worker cannot be told apart by a taint."""
        if self._settings.mode == "pin":
            return {"backend_instance_id": worker.worker_id, "dp_rank": worker.dp_rank}
        taint = self._taints.of(worker.worker_id) if self._taints is not None else None
        if taint is None:
            return None
        preferred = {"required_taints": [], "preferred_taints": {taint: self._settings.preference}}
        return {"routing_constraints": preferred}

    def _began(
        self, verdict: Verdict | None, first: Attempt, attempt: Attempt, landed: WorkerRank | None, chunk: Any
    ) -> dict[str, Any] | None:
        """The first output is there: what the client is told, if it asked."""
        if verdict is None:
            return None
        if landed is not None:
            self._keeper.served(verdict, landed)
        placed = Placed(
            request_id=verdict.request.request_id,
            reason=str(verdict.decision.reason),
            chosen=_name(first.worker),
            landed=_name(landed),
            prompt_tokens=verdict.finding.prompt_tokens,
            credit_tokens=verdict.decision.credit_tokens,
            cached_tokens=_cached_tokens(chunk),
            decide_ms=round(verdict.decide_ms, 3),
            fell_back=first.worker is not None and attempt.worker is None,
        )
        self._account.note(placed)
        if not verdict.request.wants_account:
            return None
        outcome = "placement" if attempt.worker is not None else "native"
        return {
            "outcome": outcome,
            "reason": placed.reason,
            "finding": str(verdict.finding.reason) if verdict.finding.reason else None,
            "chosen": placed.chosen,
            "landed": placed.landed,
            "credit_tokens": placed.credit_tokens,
            "decide_ms": placed.decide_ms,
            "fell_back": placed.fell_back,
        }


def _take_landing(chunk: Any) -> WorkerRank | None:
    """Where the request is served. Taken out: the frontend would read it as a landing of its own."""
    if not isinstance(chunk, dict):
        return None
    said = _table(_table(chunk.pop("routing_data", None)).get("worker_id"))
    worker_id = said.get("prefill_worker_id")
    if worker_id is None:
        worker_id = said.get("decode_worker_id")
    return None if worker_id is None else WorkerRank(int(worker_id), int(said.get("prefill_dp_rank") or 0))


def _cached_tokens(chunk: Any) -> int | None:
    usage = _table(chunk.get("completion_usage")) if isinstance(chunk, dict) else {}
    cached = _table(usage.get("prompt_tokens_details")).get("cached_tokens")
    return None if cached is None else int(cached)


def _name(worker: WorkerRank | None) -> str | None:
    return None if worker is None else f"{worker.worker_id:x}:{worker.dp_rank}"


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
