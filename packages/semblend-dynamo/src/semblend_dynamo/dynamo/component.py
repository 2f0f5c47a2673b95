"""The router as a Dynamo component: endpoints, model registration, and the pieces put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from dynamo.llm import (
    FpmEventSubscriber,
    KvRouter,
    KvRouterConfig,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
    register_model,
)
from dynamo.runtime import DistributedRuntime

from semblend_core import Settings
from semblend_dynamo.dynamo.arguments import RouterArguments
from semblend_dynamo.dynamo.control import Control
from semblend_dynamo.dynamo.deciding import Decider
from semblend_dynamo.dynamo.keeping import DonorKeeper
from semblend_dynamo.dynamo.likeness import Likeness, ModelTokenizer
from semblend_dynamo.dynamo.peers import EventStreams, Peers
from semblend_dynamo.dynamo.requests import RequestReader
from semblend_dynamo.dynamo.residency import Residency
from semblend_dynamo.dynamo.serving import Serving
from semblend_dynamo.dynamo.shared_donors import Listeners, SharedDonors
from semblend_dynamo.dynamo.taints import Taints
from semblend_dynamo.evidence import open_evidence
from semblend_dynamo.placement import Account, DonorBook, PlacementSettings, as_prometheus
from semblend_dynamo.settings import EvidenceSettings

logger = logging.getLogger(__name__)

CATCH_UP_S = 30.0
"""How long a replica that starts waits for what the others know, before it takes requests."""


async def run(runtime: DistributedRuntime, arguments: RouterArguments) -> None:
    """Serve until the runtime shuts down."""
    # Read first: a wrong setting stops the start before anything is registered.
    core, placement, evidence = Settings.from_env(), PlacementSettings.from_env(), EvidenceSettings.from_env()
    own = f"{arguments.namespace}.{arguments.component}"
    workers = runtime.endpoint(arguments.endpoint)
    client = await workers.client()
    logger.info("waiting for workers at %s", arguments.endpoint)
    await client.wait_for_instances()
    config = {"router_replica_sync": True, **arguments.kv_router_config}
    kv_router = KvRouter(endpoint=workers, block_size=arguments.block_size, kv_router_config=KvRouterConfig(**config))

    account = Account()
    book = DonorBook(core, engine="dynamo")
    likeness = _likeness(evidence, placement, arguments, account)
    streams = EventStreams()
    listeners = Listeners(likeness.offer, likeness.forget) if likeness else Listeners()
    donors = SharedDonors(book, streams.publish, listeners=listeners)
    streams.attach(donors)
    keeper = DonorKeeper(book, donors, account, new_tokens=core.min_span_tokens)
    residency = Residency(kv_router, client.instance_ids, arguments.block_size)
    cards = FpmEventSubscriber(workers) if placement.mode == "prefer" else None
    if cards is not None:
        cards.start_tracking()
    serving = Serving(
        kv_router,
        RequestReader(arguments.model_name, arguments.block_size),
        Decider(book, residency, placement, likeness),
        keeper,
        book,
        account,
        placement,
        Taints(cards.get_model_cards) if cards is not None else None,
    )

    events = runtime.endpoint(f"{own}.donors")
    peers = Peers(await events.client(), events.connection_id(), keeper.told, account)

    def report() -> dict[str, Any]:
        return {**account.report(), **keeper.report(), "followed": [f"{peer:x}" for peer in peers.followed]}

    generate = runtime.endpoint(f"{own}.generate")
    generate.metrics.register_prometheus_expfmt_callback(
        lambda: as_prometheus(account.report(), {"donors": len(donors), "generation": donors.generation})
    )
    others = [
        asyncio.ensure_future(events.serve_endpoint(streams.follow, graceful_shutdown=False)),
        asyncio.ensure_future(
            runtime.endpoint(f"{own}.control").serve_endpoint(Control(report, keeper, donors).answer)
        ),
    ]
    try:
        peers.start()
        if not await peers.catch_up(CATCH_UP_S):
            logger.warning("not all replicas have told what they know; going on without")
        await _register(generate, arguments)
        logger.info(
            "semblend-dynamo-router serves %s as %s (placement %s, %d donors heard of)",
            arguments.model_name,
            f"{own}.generate",
            placement.mode,
            len(donors),
        )
        await generate.serve_endpoint(serving.generate, graceful_shutdown=True)
    finally:
        streams.close()
        await peers.stop()
        for task in others:
            task.cancel()
        with contextlib.suppress(Exception):
            await asyncio.gather(*others, return_exceptions=True)
        keeper.close()
        if likeness is not None:
            likeness.close()
        if cards is not None:
            cards.shutdown()
        book.close()


def _likeness(
    evidence: EvidenceSettings, placement: PlacementSettings, arguments: RouterArguments, account: Account
) -> Likeness | None:
    worker = open_evidence(evidence) if placement.likeness > 0 else None
    if worker is None:
        return None
    detokenize = ModelTokenizer(arguments.model_path)
    return Likeness(worker, account, wait_ms=placement.likeness_wait_ms, detokenize=detokenize)


async def _register(endpoint: Any, arguments: RouterArguments) -> None:
    """The frontend of this namespace finds the model here, and so sends its requests through this router."""
    config = ModelRuntimeConfig()
    for name in ("context_length", "tool_call_parser", "reasoning_parser"):
        if getattr(arguments, name) is not None:
            setattr(config, name, getattr(arguments, name))
    await register_model(
        model_input=ModelInput.Tokens,
        model_type=ModelType.Chat | ModelType.Completions,
        endpoint=endpoint,
        model_path=arguments.model_path,
        model_name=arguments.model_name,
        kv_cache_block_size=arguments.block_size,
        runtime_config=config,
        worker_type=WorkerType.Aggregated,
        ignore_weights=True,
    )
