"""A router, put together as its settings say."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from semblend_core import Settings
from semblend_dynamo.evidence import open_evidence
from semblend_dynamo.gateway.bodies import BodyMemory, BodyReader
from semblend_dynamo.gateway.identity import Salting
from semblend_dynamo.gateway.replica_address import checked_address
from semblend_dynamo.gateway.secret_file import ConfigurationError, read_secret
from semblend_dynamo.gateway.upstream import Limits, Upstream
from semblend_dynamo.placement import PlacementSettings
from semblend_dynamo.router.admission import Admission
from semblend_dynamo.router.asked import Reading, open_tokenizer, weights_in
from semblend_dynamo.router.backends import Backend, DirectBackend, SmgBackend
from semblend_dynamo.router.decisions import DecisionLog
from semblend_dynamo.router.likeness import Likeness
from semblend_dynamo.router.metrics import RouterMetrics
from semblend_dynamo.router.policies import LeastLoaded, Policy, PrefixHash, RoundRobin, SemanticLocality
from semblend_dynamo.router.replicas import Breaker, Replica, addresses_in
from semblend_dynamo.router.service import CompletionService
from semblend_dynamo.router.sessions import Sessions
from semblend_dynamo.router.settings import RouterSettings

logger = logging.getLogger(__name__)

_LOOKUP_BUDGET_MS = 50.0
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_PATH = re.compile(r"/[\x21-\x7e]*")


@dataclass
class Router:
    """Everything that lives as long as the application."""

    settings: RouterSettings
    backend: Backend
    policy: Policy
    service: CompletionService
    admission: Admission
    sessions: Sessions
    bodies: BodyMemory
    decisions: DecisionLog
    metrics: RouterMetrics
    upstream: Upstream
    operator_token: str = ""

    async def look_after_replicas(self) -> None:
        """Probe them again and again, until cancelled."""
        while True:
            try:
                await self.probe()
            except Exception as error:
                # Whatever a replica did: without probes nobody would notice that others come and go.
                logger.error("the replicas could not be probed: %s", type(error).__name__)
            await asyncio.sleep(self.settings.probe_interval_s)

    async def probe(self) -> None:
        for gone in await self.backend.probe(self.upstream):
            logger.warning("replica %s does not answer its health probe", gone.name)
            self.policy.forget(gone)
        self.admission.admit()

    async def close(self) -> None:
        self.service.close()
        await self.upstream.close()
        self.policy.close()


def build_router(
    settings: RouterSettings, core: Settings | None = None, placement: PlacementSettings | None = None
) -> Router:
    """ConfigurationError or SettingError where the settings cannot be worked with."""
    core, placement = core or core_settings(), placement or PlacementSettings.from_env()
    reading = _reading(settings)
    backend = _backend(settings)
    policy = _policy(settings, core, placement, reading)
    salting = _salting(settings)
    _check_names(settings)
    upstream = Upstream(_limits(settings))

    def room() -> int:
        alive = sum(each.available for each in backend.replicas) or max(1, len(backend.replicas))
        return alive * settings.replica_in_flight

    admission = Admission(room, settings.queue, settings.queue_timeout_s)
    sessions = Sessions(settings.sessions)
    bodies = BodyMemory(settings.body_memory)
    gauges = {
        "waiting": lambda: float(admission.waiting),
        "under_way": lambda: float(admission.under_way),
        "sessions": lambda: float(len(sessions)),
        "body_bytes": lambda: float(bodies.held),
        "donors": lambda: float(policy.donors if isinstance(policy, SemanticLocality) else 0),
    }
    metrics = RouterMetrics(lambda: backend.replicas, gauges)
    decisions = DecisionLog(settings.decisions)
    service = CompletionService(
        backend=backend,
        policy=policy,
        upstream=upstream,
        bodies=BodyReader(settings.max_body, settings.body_timeout_s, bodies),
        admission=admission,
        sessions=sessions,
        salting=salting,
        reading=reading,
        stall_s=settings.stall_timeout_s,
        timeout_s=settings.timeout_s,
        replica_in_flight=settings.replica_in_flight,
        tenant_header=settings.tenant_header,
        route_headers=settings.route_headers,
        decisions=decisions,
        metrics=metrics,
    )
    token = settings.operator_token_file
    return Router(
        settings=settings,
        backend=backend,
        policy=policy,
        service=service,
        admission=admission,
        sessions=sessions,
        bodies=bodies,
        decisions=decisions,
        metrics=metrics,
        upstream=upstream,
        operator_token=read_secret(token, settings.variable("operator_token_file")) if token else "",
    )


def _limits(settings: RouterSettings) -> Limits:
    return Limits(
        connect_s=settings.connect_timeout_s,
        first_byte_s=settings.first_byte_timeout_s,
        whole_s=settings.whole_answer_timeout_s,
        stall_s=settings.stall_timeout_s,
    )


def _check_names(settings: RouterSettings) -> None:
    if not _HEADER_NAME.fullmatch(settings.tenant_header):
        named = settings.variable("tenant_header")
        raise ConfigurationError(f"{named}={settings.tenant_header!r} is no header's name, such as x-tenant-id")
    if not _PATH.fullmatch(settings.probe_path):
        named = settings.variable("probe_path")
        raise ConfigurationError(f"{named}={settings.probe_path!r} is no path, such as /health")


def core_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """The environment's. A lookup may take longer here than in an engine's scheduler, where every request waits."""
    settings = Settings.from_env(environ)
    given = environ.get(Settings.variable("lookup_budget_ms"), "").strip()
    return settings if given else replace(settings, lookup_budget_ms=_LOOKUP_BUDGET_MS)


def _backend(settings: RouterSettings) -> Backend:
    def make(name: str, url: str) -> Replica:
        return Replica(name, url, Breaker(settings.breaker_failures, settings.breaker_open_s))

    named, listed = settings.variable("gateway"), settings.variable("replicas")
    if settings.gateway and settings.replicas:
        raise ConfigurationError(
            f"{named} and {listed} are both set: the gateway names its replicas, so unset {listed}"
        )
    if settings.gateway:
        return SmgBackend(checked_address(settings.gateway, named), make)
    if not settings.replicas.strip(" ,"):
        raise ConfigurationError(
            f"there are no replicas: set {listed}=http://host:port,... or {named}=http://host:port"
        )
    return DirectBackend([make(*each) for each in addresses_in(settings.replicas, listed)], settings.probe_path)


def _reading(settings: RouterSettings) -> Reading:
    encode = open_tokenizer(settings.tokenizer, settings.variable("tokenizer")) if settings.tokenizer else None
    return Reading(encode, weights_in(settings.type_weights, settings.variable("type_weights")))


def _policy(settings: RouterSettings, core: Settings, placement: PlacementSettings, reading: Reading) -> Policy:
    if settings.policy == "round_robin":
        return RoundRobin()
    if settings.policy == "least_loaded":
        return LeastLoaded()
    if settings.policy == "prefix_hash":
        return PrefixHash()
    likeness = None
    if settings.likeness and not placement.likeness:
        named, worth = settings.variable("likeness"), placement.variable("likeness")
        raise ConfigurationError(f"{named} has no effect while {worth} is 0: set it, such as to 0.1")
    if settings.likeness and (worker := open_evidence()) is not None:
        likeness = Likeness(worker, placement.likeness, placement.likeness_wait_ms)
    return SemanticLocality(core, placement, settings.cache_tokens, likeness)


def _salting(settings: RouterSettings) -> Salting:
    named = settings.variable("salt_key_file")
    if settings.salt not in ("tenant", "api_key"):
        return Salting(settings.salt, salt_field=settings.salt_field)
    if not settings.salt_key_file:
        raise ConfigurationError(f"{settings.variable('salt')}={settings.salt} needs {named}, a file with a secret")
    return Salting(settings.salt, read_secret(settings.salt_key_file, named), settings.salt_field)
