"""Similarity as evidence: it helps to find donors and to route requests, and never licenses loading KV.

Read in this order: ``document``, ``embedder``, ``vector_index``, ``worker``.
"""

from semblend_core.evidence.document import Document, NoTextError
from semblend_core.evidence.embedder import Embedder, EvidenceError, Vectors, embedder_builder
from semblend_core.evidence.jaccard import JaccardEmbedder
from semblend_core.evidence.minilm import MiniLMEmbedder
from semblend_core.evidence.stats import EvidenceStats
from semblend_core.evidence.vector_index import Match, VectorIndex
from semblend_core.evidence.worker import EvidenceWorker

__all__ = [
    "Document",
    "Embedder",
    "EvidenceError",
    "EvidenceStats",
    "EvidenceWorker",
    "JaccardEmbedder",
    "Match",
    "MiniLMEmbedder",
    "NoTextError",
    "VectorIndex",
    "Vectors",
    "embedder_builder",
]
