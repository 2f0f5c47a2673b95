"""The life of a request as engines see it, written once for all adapters.

``RequestLife`` and ``RequestBook`` know where every request stands and report its outcome, once. ``Seeker`` turns a
waiting request into a ``Claim``. ``DonorBook`` knows which donors exist. Where the engine's workers are apart from its
scheduler, ``DonorKeeper`` decides what they keep, ``StepWork`` tells them, ``WorkerNews`` is their answer, and
``semblend_core.serving.worker`` carries it out. What only one engine knows (its hooks, its blocks or slots, its batch)
stays in that engine's adapter.
"""

from semblend_core.contract import digest_at_rank
from semblend_core.costs import Part
from semblend_core.provider.sharing import may_share, shown_as_cached
from semblend_core.quality import Scored
from semblend_core.serving.alias_ledger import AliasLedger
from semblend_core.serving.captures import tokens_to_keep
from semblend_core.serving.claims import (
    Claim,
    Rows,
    claim_by_scores,
    claim_by_tier,
    claim_of,
    rows_by_scores,
    take_rows,
)
from semblend_core.serving.containment import contain, contained
from semblend_core.serving.cost_gate import CostGate
from semblend_core.serving.disk_waits import Arrival
from semblend_core.serving.donors import Donor, DonorBook
from semblend_core.serving.earlier import LeftAtRanks
from semblend_core.serving.fetch_orders import FetchOrders
from semblend_core.serving.hot import HotOpenings, Opening
from semblend_core.serving.keeping import DonorKeeper
from semblend_core.serving.life import Finding, RequestLife, Stage, token_ids_of
from semblend_core.serving.lineage import Lineage, LineageBook
from semblend_core.serving.messages import (
    CaptureOrder,
    CorrectionOrder,
    Landed,
    LoadOrder,
    ProbeOrder,
    StepWork,
    WorkerNews,
)
from semblend_core.serving.namespaces import Namespaces
from semblend_core.serving.prefixes import DonorName, DonorPrefixes
from semblend_core.serving.probing import MOST_FAILED_PROBES, PROBED_RUN, ProbeTrust, Probing, probing_of
from semblend_core.serving.quality_guard import ANSWER_TOKENS, LIKELIEST, Comparison, QualityGuard
from semblend_core.serving.requests import RequestBook
from semblend_core.serving.round_time import RoundTime
from semblend_core.serving.seeking import Seeker
from semblend_core.serving.self_test import SelfTest
from semblend_core.serving.tenants import Tenants
from semblend_core.serving.wishes import Wish

__all__ = [
    "ANSWER_TOKENS",
    "LIKELIEST",
    "MOST_FAILED_PROBES",
    "PROBED_RUN",
    "AliasLedger",
    "Arrival",
    "CaptureOrder",
    "Claim",
    "Comparison",
    "CorrectionOrder",
    "CostGate",
    "Donor",
    "DonorBook",
    "DonorKeeper",
    "DonorName",
    "DonorPrefixes",
    "FetchOrders",
    "Finding",
    "HotOpenings",
    "Landed",
    "LeftAtRanks",
    "Lineage",
    "LineageBook",
    "LoadOrder",
    "Namespaces",
    "Opening",
    "Part",
    "ProbeOrder",
    "ProbeTrust",
    "Probing",
    "QualityGuard",
    "RequestBook",
    "RequestLife",
    "RoundTime",
    "Rows",
    "Scored",
    "Seeker",
    "SelfTest",
    "Stage",
    "StepWork",
    "Tenants",
    "Wish",
    "WorkerNews",
    "claim_by_scores",
    "claim_by_tier",
    "claim_of",
    "contain",
    "contained",
    "digest_at_rank",
    "may_share",
    "probing_of",
    "rows_by_scores",
    "shown_as_cached",
    "take_rows",
    "token_ids_of",
    "tokens_to_keep",
]
