"""Variables of the public package ``semblend`` 0.1 to 0.3 that mean nothing here, and what to write instead.

Those that can be honoured are declared as ``formerly`` with the setting that took their place.
"""

from __future__ import annotations

_ALWAYS = "it is always so"
_SIMILARITY = "similarity licenses no load; semblend-dynamo reads it, for evidence"
_EXACT = "only token-exact runs are loaded, so there is nothing to tune"
_RECOMPUTED = "SEMBLEND_QUALITY_TIER and SEMBLEND_RECOMPUTE_LIMIT say what is computed afresh"
_SEAMS = "SEMBLEND_QUALITY_TIER says how much of a span's beginning is computed afresh"
_ROTATED = "keys are always turned to their new place, and a self-test proves it for the model"
_ENGINE = "the engine tells it"
_TENANTS = "send the tenant as cache_salt with each request"
_SERVICE = "no service beside the engine is asked"
_OF_DYNAMO = "the router of semblend-dynamo reads Dynamo's own `DYN_*` and `NATS_SERVER`"
_MEASURE = "docs/telemetry.md says what is counted"

EARLIER: dict[str, str] = {
    "SEMBLEND_STRICT_PREFIX_BOUNDARY": "claims always keep to the engine's prefix contract",
    "SEMBLEND_EXACT_MATERIALIZATION_ONLY": "only token-exact spans are ever loaded, and nothing changes that",
    "SEMBLEND_EMBEDDER": _SIMILARITY,
    "SEMBLEND_MIN_SIMILARITY": _SIMILARITY,
    "SEMBLEND_EMBED_*": _SIMILARITY,
    "SEMBLEND_SEGMENT_EMBEDDINGS": _SIMILARITY,
    "SEMBLEND_PQ_TRAIN_THRESHOLD": _SIMILARITY,
    "SEMBLEND_USE_CAGRA": _SIMILARITY,
    "SEMBLEND_JINA_URL": _SERVICE,
    "SEMBLEND_GATEWAY_URL": _SERVICE,
    "SYNAPSE_GATEWAY_URL": _SERVICE,
    "SEMBLEND_PIPELINE_MODE": _SERVICE,
    "SEMBLEND_USE_PIPELINE": "SEMBLEND_ENABLED=0 switches SemBlend off",
    "SEMBLEND_DISABLE_REGISTRATION": "SEMBLEND_CAPTURE=hinted keeps only prompts whose request asks for it",
    "SEMBLEND_MULTI_DONOR": _ALWAYS,
    "SEMBLEND_USE_ALIGNMENT": _ALWAYS,
    "SEMBLEND_RETURN_SEGMENTS": _ALWAYS,
    "SEMBLEND_SEGMENT_MIN_TOKENS": "SEMBLEND_MIN_SPAN_TOKENS is the shortest span",
    "SEMBLEND_SPARSE_MIN_SPAN": "SEMBLEND_MIN_SPAN_TOKENS is the shortest span",
    "SEMBLEND_TRTLLM_*": "semblend-trtllm reads settings of its own: docs/settings.md has them",
    "SEMBLEND_FUZZY_*": "SEMBLEND_FUZZY_CHUNKS=1 searches edited donors too; what is loaded stays token-exact",
    "SEMBLEND_FORCE_VERIFY_FUZZY": _EXACT,
    "SEMBLEND_EXACT_RUN_*": "any exact run of SEMBLEND_MIN_SPAN_TOKENS is found, of any donor",
    "SEMBLEND_CHUNK_FAST_PATH*": "any exact run of SEMBLEND_MIN_SPAN_TOKENS is found, of any donor",
    "SEMBLEND_FAST_PATH_MIN_HITS": "any exact run of SEMBLEND_MIN_SPAN_TOKENS is found, of any donor",
    "SEMBLEND_CDC_CHUNKS": "any exact run of SEMBLEND_MIN_SPAN_TOKENS is found, of any donor",
    "SEMBLEND_TOKEN_SET_LONG_FALLBACK": _EXACT,
    "SEMBLEND_CONFIDENCE_PENALTY_SCALE": _EXACT,
    "SEMBLEND_SPAN_MISMATCH_TOLERANCE": _EXACT,
    "SEMBLEND_CANONICAL_MATCH": _EXACT,
    "SEMBLEND_PARAPHRASE_SERVE": _EXACT,
    "SEMBLEND_NLI_APPEAL": _EXACT,
    "SEMBLEND_CONTEXT_GATE": "SEMBLEND_QUALITY_TIER=strict declines what cannot be held to it",
    "SEMBLEND_LAYER_*": _RECOMPUTED,
    "SEMBLEND_MAX_RECOMPUTE_FRACTION": _RECOMPUTED,
    "SEMBLEND_RECOMPUTE_ADAPTIVE_*": _RECOMPUTED,
    "SEMBLEND_RECOMPUTE_THRESHOLD": _RECOMPUTED,
    "SEMBLEND_FORCE_RECOMPUTE_LAYERS": _RECOMPUTED,
    "SEMBLEND_SKIP_RECOMPUTE_LAYERS": _RECOMPUTED,
    "SEMBLEND_USE_PARTIAL_ATTN": _RECOMPUTED,
    "SEMBLEND_SPARSE_*": _SEAMS,
    "SEMBLEND_SEGMENT_EDGE_TRIM": _SEAMS,
    "SEMBLEND_SINK_PROTECT_TOKENS": _SEAMS,
    "SEMBLEND_DONOR_SINK_PROTECT_TOKENS": _SEAMS,
    "SEMBLEND_DONOR_RUN_HEAD_TRIM": _SEAMS,
    "SEMBLEND_TAIL_RESERVE_TOKENS": "the engine computes all that no span covers, the last token always",
    "SEMBLEND_DISABLE_ROPE_CORRECTION": _ROTATED,
    "SEMBLEND_FORCE_DELTA*": _ROTATED,
    "SEMBLEND_USE_NOPE": _ROTATED,
    "SEMBLEND_ROPE_THETA": _ROTATED,
    "SEMBLEND_KV_FINGERPRINT": _ENGINE,
    "SEMBLEND_MODEL_NAME": _ENGINE,
    "SEMBLEND_MODEL_REVISION": _ENGINE,
    "SEMBLEND_TOKENIZER_REVISION": _ENGINE,
    "SEMBLEND_ADAPTER_ID": _ENGINE,
    "SEMBLEND_TENANT_ID": _TENANTS,
    "SEMBLEND_DONOR_TENANT": _TENANTS,
    "SEMBLEND_DONOR_TEMPLATE": _TENANTS,
    "SEMBLEND_UNSALTED_DONOR_WARN_AFTER": "requests without a cache_salt share nothing unless SEMBLEND_SHARING=all",
    "SEMBLEND_NATS_*": _OF_DYNAMO,
    "SEMBLEND_ENDPOINT_ID": _OF_DYNAMO,
    "SEMBLEND_WORKER_ID": _OF_DYNAMO,
    "SEMBLEND_METRICS": _MEASURE,
    "SEMBLEND_REGISTER_TIMING": _MEASURE,
}
"""A name that ends with ``*`` stands for all that begin with it, but for those that have a line of their own."""


def advice_on(variable: str) -> str | None:
    """What to do about a variable of the public package's; None: it never had one of that name."""
    if variable in EARLIER:
        return EARLIER[variable]
    for name, advice in EARLIER.items():
        if name.endswith("*") and variable.startswith(name[:-1]):
            return advice
    return None
