"""All items of a manifest, served and recorded; what was recorded survives a kill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from sembench.engine_events import summarize
from sembench.engine_events.tries import fold_tries
from sembench.exit_codes import REFUSED_OUTSIDE
from sembench.identity import RunKind, identify, now
from sembench.live.arms import ItemReplay, Servers
from sembench.live.config import LiveConfig, open_client
from sembench.live.isolation import Isolation
from sembench.live.preflight import Preflight, preflight, warm_up
from sembench.partial import PartialHeader, PartialLine, PartialRun
from sembench.results import build_result
from sembench.results.confirmation import join_requests
from sembench.results.request_ids import find_client_id
from sembench.schema import EngineRequest, InputError, ManifestItem, RequestRecord, Result

_SETTLE_S = 0.5
_SETTLE_TRIES = 2
"""Of a stream that never tells of a request, such as one of another server, nothing more is to come."""
FAILURES_IN_A_ROW = 10
"""So many, and the server is gone rather than some requests bad."""
OnRecord = Callable[[RequestRecord], None]
OpenPartial = Callable[[PartialHeader], PartialRun]


async def replay(
    config: LiveConfig,
    manifest: Path,
    items: Sequence[ManifestItem],
    open_partial: OpenPartial,
    on_record: OnRecord,
    api_key: str | None,
) -> Recording:
    """Serve what is not yet recorded. The recording that comes back holds every record."""
    async with open_client(api_key, config.concurrency) as client:
        servers = open_servers(config, client)
        began = now()  # What the preflight makes an engine tell belongs to the run too.
        found = await check_servers(config, servers)
        isolation = Isolation(client, found.able, concurrency=config.concurrency, tenant=config.tenant)
        header = _header(config, manifest, items, found, isolation)
        header.run.started_at = began
        recording = Recording(open_partial(header))
        try:
            await warm_up_servers(config, servers, items)
            run = _ServingRun(config, servers, isolation, found, recording, on_record)
            await run.serve(run.take_up(items))
        finally:
            recording.partial.close()
        return recording


class Recording:
    """The records of a run by item and arm, on disk as they come."""

    def __init__(self, partial: PartialRun) -> None:
        self.partial = partial
        self.records: dict[tuple[str, str], RequestRecord] = {}
        self.resumed = 0
        """How often the run was taken up again."""
        for line in partial.lines:
            self._take(line)
        if partial.resumed:
            self.resumed += 1
            partial.append({"resumed": self.resumed})

    def append(self, record: RequestRecord) -> None:
        self.records[(record.item_id, record.arm)] = record
        self.partial.append({"record": record.model_dump(mode="json")})

    def forget(self, items: Iterable[str]) -> None:
        """These items are to be served again on resume: what failed there says nothing of them."""
        self.partial.append({"redo": sorted(set(items))})

    def _take(self, line: PartialLine) -> None:
        self.resumed += "resumed" in line.value
        if "record" in line.value:
            record = line.parse(RequestRecord, line.value["record"])
            self.records[(record.item_id, record.arm)] = record
        for item_id in line.value.get("redo", []):
            for key in [key for key in self.records if key[0] == item_id]:
                del self.records[key]


def find_served(partial: Path) -> dict[str, set[str]]:
    """The arms of each item that a stopped run has recorded, read without taking the file up."""
    served: dict[str, set[str]] = {}
    whole = partial.read_bytes().rpartition(b"\n")[0]
    for number, text in enumerate(whole.splitlines(), 1):
        value = PartialLine(f"{partial}:{number}", text).value
        record = value.get("record")
        if isinstance(record, dict):
            served.setdefault(str(record.get("item_id")), set()).add(str(record.get("arm")))
        for item_id in value.get("redo", []):
            served.pop(item_id, None)
    return served


def open_servers(config: LiveConfig, client: httpx.AsyncClient) -> Servers:
    recipients = config.endpoint(client)
    apart = config.donor_url is not None and config.donor_url != config.url
    return Servers(recipients, config.endpoint(client, config.donor_url) if apart else recipients)


async def describe_server(config: LiveConfig, api_key: str | None) -> dict[str, Any]:
    """What the server says of itself, asked without serving anything."""
    async with open_client(api_key, 1) as client:
        return await config.endpoint(client).describe()


async def check_servers(config: LiveConfig, servers: Servers) -> Preflight:
    """Refuses before anything is measured: exit 3."""
    if servers.donors is not servers.recipients:
        (await preflight(servers.donors, prove=False)).require()
    found = await preflight(
        servers.recipients,
        prove=config.paired,
        reset_urls=config.reset_urls,
        workers=config.workers,
        reuse_off=config.reuse_off if config.paired or config.probe else None,
    )
    found.require()
    if config.probe and not found.able.reuse_off:
        raise InputError(
            f"--probe: {config.url} does not accept the switch {config.reuse_off} (--reuse-off)", REFUSED_OUTSIDE
        )
    return found


async def warm_up_servers(config: LiveConfig, servers: Servers, items: Sequence[ManifestItem]) -> None:
    words = max(len(item.recipient_prompt.split()) for item in items)
    for endpoint in dict.fromkeys((servers.recipients, servers.donors)):
        await warm_up(endpoint, config.warmup_requests, words=words, max_tokens=config.max_output_tokens)


def build_live_result(config: LiveConfig, items: Sequence[ManifestItem], recording: Recording) -> Result:
    """The result of all records, in the manifest's order, whatever the order in which they were served."""
    ordered = [
        recording.records[(item.item_id, arm)]
        for item in items
        for arm in config.arms
        if (item.item_id, arm) in recording.records
    ]
    if config.connector_audit:
        try:
            ordered = join_audit(ordered, Path(config.connector_audit))
        except InputError as error:
            raise InputError(
                f"{error}\nThe records are kept: put the file there and run again with --resume."
            ) from None
    told = config.model_dump(mode="json") | {"resumed": recording.resumed}
    return build_result(recording.partial.header.run, told, items, ordered, config.block_size)


def _header(
    config: LiveConfig, manifest: Path, items: Sequence[ManifestItem], found: Preflight, isolation: Isolation
) -> PartialHeader:
    kind: RunKind = "live-sglang" if config.engine == "sglang" else "live-gateway"
    # Without a cold arm nothing has to be kept apart: items meet the cache as traffic leaves it.
    apart = isolation.how if config.paired else "none"
    server = {**found.engine, "cached_tokens": found.able.cached_tokens, "isolation": apart}
    run = identify(
        kind, manifest, len(items), seed=config.seed, engine=server, serve_command=config.serve_command, device="remote"
    )
    return PartialHeader(run=run, fixed={"config": config.model_dump(mode="json"), "server": server})


class _ServingRun:
    """The workers that share one queue of items."""

    def __init__(
        self,
        config: LiveConfig,
        servers: Servers,
        isolation: Isolation,
        found: Preflight,
        recording: Recording,
        on_record: OnRecord,
    ) -> None:
        self._config = config
        self._servers = servers
        self._isolation = isolation
        self._able = found.able
        self._recording = recording
        self._on_record = on_record
        self._failed_in_a_row: list[RequestRecord] = []

    def take_up(self, items: Sequence[ManifestItem]) -> list[ManifestItem]:
        """What is left to serve. An item of which an arm is missing starts over: its arms depend on each other."""
        recorded, arms = self._recording.records, self._config.arms
        left = [item for item in items if any((item.item_id, arm) not in recorded for arm in arms)]
        for item in left:
            for arm in arms:
                recorded.pop((item.item_id, arm), None)
        for record in recorded.values():
            self._on_record(record)
        return left

    async def serve(self, items: Sequence[ManifestItem]) -> None:
        queue = iter(items)
        workers = [asyncio.create_task(self._work(queue)) for _ in range(self._config.concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, queue: Iterator[ManifestItem]) -> None:
        for item in queue:
            replayed = ItemReplay(item, self._config, self._servers, self._isolation, self._able)
            async for record in replayed.records():
                self._recording.append(record)
                self._on_record(record)
                self._watch(record)

    def _watch(self, record: RequestRecord) -> None:
        if record.status == "ok":
            self._failed_in_a_row.clear()
            return
        self._failed_in_a_row.append(record)
        if len(self._failed_in_a_row) < FAILURES_IN_A_ROW:
            return
        self._recording.forget(failed.item_id for failed in self._failed_in_a_row)
        raise InputError(
            f"{FAILURES_IN_A_ROW} requests failed in a row, the last with: {record.error}\n"
            f"What was measured is in {self._recording.partial.path}; mend the server and run again with --resume.",
            REFUSED_OUTSIDE,
        )


def join_audit(records: Sequence[RequestRecord], path: Path) -> list[RequestRecord]:
    """The records with what the stream at ``path`` confirms; None stays where it has nothing on a request."""
    told = _by_our_id(path)
    for _ in range(_SETTLE_TRIES):
        if all(_is_settled(told.get(record.request_id or "")) for record in records if _is_awaited(record)):
            break
        time.sleep(_SETTLE_S)  # the stream is written behind the answers
        told = _by_our_id(path)
    return join_requests(records, told)


def _is_awaited(record: RequestRecord) -> bool:
    return record.arm == "warm" and record.status == "ok"


def _is_settled(told: EngineRequest | None) -> bool:
    """A lookup alone may be followed by what landed."""
    return told is not None and told.confirmed_tokens is not None


def _by_our_id(path: Path) -> dict[str, EngineRequest]:
    if not path.is_file():
        raise InputError(f"--connector-audit {path}: no such file")
    tries: dict[str, list[EngineRequest]] = {}
    for name, request in summarize("semblend", [path]).requests.items():
        tries.setdefault(find_client_id(name), []).append(request)
    return {name: fold_tries(each) for name, each in tries.items()}
