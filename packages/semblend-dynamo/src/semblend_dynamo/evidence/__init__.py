"""Similarity as evidence: it helps to route requests, and never licenses loading KV.

Read in this order: ``embedder``, ``vector_index``, ``worker``, ``opening``.
"""

from semblend_dynamo.evidence.embedder import Document, Embedder, EvidenceError, NoTextError, Vectors
from semblend_dynamo.evidence.jaccard import JaccardEmbedder
from semblend_dynamo.evidence.minilm import MiniLMEmbedder
from semblend_dynamo.evidence.opening import embedder_builder, open_evidence
from semblend_dynamo.evidence.queues import Evidence
from semblend_dynamo.evidence.vector_index import Match, VectorIndex
from semblend_dynamo.evidence.wordpiece import bundled_vocabulary
from semblend_dynamo.evidence.worker import EvidenceStats, EvidenceWorker

__all__ = [
    "Document",
    "Embedder",
    "Evidence",
    "EvidenceError",
    "EvidenceStats",
    "EvidenceWorker",
    "JaccardEmbedder",
    "Match",
    "MiniLMEmbedder",
    "NoTextError",
    "VectorIndex",
    "Vectors",
    "bundled_vocabulary",
    "embedder_builder",
    "open_evidence",
]
