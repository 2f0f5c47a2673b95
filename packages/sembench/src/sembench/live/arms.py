"""One item served: cold, exact, warm, probe. Each arm ends in one record, whatever happens."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from sembench.live.config import LiveArm, LiveConfig
from sembench.live.endpoint import Endpoint, Reply, ServerRequest
from sembench.live.isolation import Capabilities, Isolation, Scope
from sembench.live.streaming import RequestFailedError
from sembench.results.routes import worker_of
from sembench.schema import ManifestItem, RequestRecord
from sembench.scoring import judge

_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
_ONE_CONVERSATION = "multi_turn"
"""The transform whose donor and recipient are the same session."""


@dataclass(frozen=True)
class ScopedReply:
    """An answer and what was shared with the requests before it."""

    reply: Reply
    scope: Scope
    request_id: str


@dataclass(frozen=True)
class Servers:
    recipients: Endpoint
    donors: Endpoint


class ItemReplay:
    """Serves one item's arms in order.

    A failed arm is tried again as a whole, in a new scope: the attempt that failed may have left the prompt's own KV in
    the cache, and an answer from that is no measurement.
    """

    def __init__(
        self, item: ManifestItem, config: LiveConfig, servers: Servers, isolation: Isolation, able: Capabilities
    ) -> None:
        self.item = item
        self._config = config
        self._servers = servers
        self._isolation = isolation
        self._reuse_off = config.reuse_off if able.reuse_off else {}
        # Random, and new in every process: ids and sessions of a run that was killed must not come back.
        self._nonce = secrets.token_hex(4)
        self._scopes: dict[LiveArm, Scope] = {}
        self._donor_workers: list[str] = []
        self._sent: str | None = None
        """The id of the latest request of an arm."""

    async def records(self) -> AsyncIterator[RequestRecord]:
        for arm in self._config.arms:
            yield await self.serve(arm)

    async def serve(self, arm: LiveArm) -> RequestRecord:
        """One arm, tried as often as the configuration allows."""
        way: dict[LiveArm, Callable[[int], Awaitable[ScopedReply]]] = {
            "cold": self._cold,
            "exact": self._exact,
            "warm": self._warm,
            "probe": self._probe,
        }
        attempts, self._sent = 0, None
        while True:
            attempts += 1
            try:
                return self._measured(arm, await way[arm](attempts), attempts)
            except RequestFailedError as error:
                if not error.retryable or attempts > self._config.retries:
                    return self._record(arm, attempts, status="error", error=str(error), request_id=self._sent)
            await asyncio.sleep(min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** (attempts - 1)))

    async def _cold(self, attempt: int) -> ScopedReply:
        """Nothing of this item has been served, and the engine must say so."""
        scope = await self._isolation.open()
        served = await self._recipient("cold", attempt, scope, reuse=False)
        self._scopes["cold"] = scope
        return served

    async def _exact(self, attempt: int) -> ScopedReply:
        """The cold request again: the engine's own prefix cache answers."""
        if "cold" not in self._scopes:
            raise RequestFailedError("the cold arm, whose prompt this repeats, was not served", retryable=False)
        return await self._recipient("exact", attempt, self._scopes["cold"], reuse=False)

    async def _warm(self, attempt: int) -> ScopedReply:
        """Donors first; waiting after them is the harness's time, and the clock starts with the recipient."""
        scope = await self._isolation.open() if self._config.paired else self._unpaired_scope()
        donors = [await self._donor(number, attempt, scope) for number in range(len(self.item.donor_prompts))]
        self._donor_workers = list(dict.fromkeys(name for each in donors if (name := worker_of(each.route))))
        await asyncio.sleep(self._config.post_donor_delay_ms / 1000)
        served = await self._recipient("warm", attempt, scope, reuse=True)
        self._scopes["warm"] = scope
        return served

    def _unpaired_scope(self) -> Scope:
        # Another item may have left the very document of a control, whose own donors are to give it nothing.
        return self._isolation.apart() if self.item.negative_control else self._isolation.shared

    async def _probe(self, attempt: int) -> ScopedReply:
        """The warm request again with reuse off: what it finds lies under exact keys."""
        if "warm" not in self._scopes:
            raise RequestFailedError("the warm arm, whose prompt this repeats, was not served", retryable=False)
        return await self._recipient("probe", attempt, self._scopes["warm"], reuse=False)

    async def _donor(self, number: int, attempt: int, scope: Scope) -> Reply:
        donor = self.item.donor_prompts[number]
        name = self._sent = self._name(f"donor{number}", attempt)
        tokens = self._config.donor_output_tokens
        request = ServerRequest(scope.prefix + donor.text, name, self._session(f"donor{number}"), tokens, scope.salt)
        try:
            return await self._servers.donors.ask(request)
        except RequestFailedError as error:
            reason = f"donor {donor.donor_id}: {error}"
            raise RequestFailedError(reason, retryable=error.retryable, status=error.status) from None

    async def _recipient(self, arm: LiveArm, attempt: int, scope: Scope, *, reuse: bool) -> ScopedReply:
        name = self._sent = self._name(arm, attempt)
        request = ServerRequest(
            scope.prefix + self.item.recipient_prompt,
            name,
            self._session(arm),
            self._config.max_output_tokens,
            scope.salt,
            extra={} if reuse else self._reuse_off,
            logprobs=self._config.capture_logprobs,
        )
        return ScopedReply(await self._servers.recipients.ask(request), scope, name)

    def _name(self, role: str, attempt: int) -> str:
        """Of fixed width at its end, so that no id is part of another."""
        return f"sb-{self._nonce}-{self.item.item_id}-{role}-{attempt:03d}"

    def _session(self, role: str) -> str:
        # Strangers, unless it is one conversation: affinity to a session would find the donor without any search.
        shared = self.item.transform == _ONE_CONVERSATION and role not in ("cold", "exact")
        return f"sb-{self._nonce}-{self.item.item_id}" + ("" if shared else f"-{role}")

    def _measured(self, arm: LiveArm, served: ScopedReply, attempts: int) -> RequestRecord:
        reply = served.reply
        record = self._record(
            arm,
            attempts,
            request_id=served.request_id,
            prompt_tokens=reply.prompt_tokens,
            ttft_ms=reply.ttft_ms,
            latency_ms=reply.latency_ms,
            output_tokens=reply.output_tokens,
            engine_cached_tokens=reply.cached_tokens,
            output=reply.text,
            output_logprobs=reply.logprobs,
            quality=judge(reply.text, self.item, self._config.quality_threshold),
            route=dict(reply.route),
            donor_workers=self._donor_workers,
        )
        if arm != "cold":
            return record
        proof = self._isolation.prove_cold(served.scope, reply)
        return record.model_copy(update={"proved_cold": proof.proved, "cold_proof": proof.text})

    def _record(self, arm: LiveArm, attempts: int, **fields: object) -> RequestRecord:
        item = self.item
        known = {
            "item_id": item.item_id,
            "arm": arm,
            "dataset": item.dataset,
            "transform": item.transform,
            "negative_control": item.negative_control,
            "attempts": attempts,
        }
        return RequestRecord.model_validate(known | fields)
