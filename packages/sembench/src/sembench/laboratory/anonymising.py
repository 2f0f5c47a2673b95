"""Takes out of a trace what could tell whose it is. What recurs with what, and when, stays."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator

from sembench.laboratory.trace_schema import TraceBlock, TraceRequest


class Anonymiser:
    """Texts go. Hashes are hashed again under a secret that is never written: a hash of a guessed text proves nothing.

    Requests, sessions, tenants and models become numbers; a type that is none of the known ones becomes ``other``.
    Times count from the earliest request, ``start_ms``.
    """

    def __init__(self, start_ms: float, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)
        self._start_ms = start_ms
        self._numbers: dict[str, dict[str, str]] = {"session": {}, "tenant": {}, "model": {}}

    def anonymise(self, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
        for number, request in enumerate(requests):
            yield TraceRequest(
                request_id=f"request-{number:07d}",
                timestamp_ms=max(0.0, round(request.timestamp_ms - self._start_ms, 3)),
                session_id=self._numbered("session", request.session_id),
                tenant_id=self._numbered("tenant", request.tenant_id),
                model_name=self._numbered("model", request.model_name),
                blocks=[self._block(request, position, block) for position, block in enumerate(request.blocks)],
                observed_ttft_ms=request.observed_ttft_ms,
                observed_total_latency_ms=request.observed_total_latency_ms,
                observed_prefix_hit_tokens=request.observed_prefix_hit_tokens,
                observed_prefill_tokens=request.observed_prefill_tokens,
            )

    def _block(self, request: TraceRequest, position: int, block: TraceBlock) -> TraceBlock:
        # Under the tenant too: that two tenants hold the same text is nobody's business.
        said = f"{request.tenant_id or ''}\0{block.content_hash}".encode("utf-8", "surrogatepass")
        return TraceBlock(
            block_id=None,
            content_hash=hashlib.blake2b(said, key=self._secret, digest_size=16).hexdigest(),
            semantic_type=block.kind,
            token_count=block.token_count,
            position=position,
        )

    def _numbered(self, kind: str, name: str | None) -> str | None:
        if not name:  # Nobody in particular, as where the field is missing.
            return None
        numbers = self._numbers[kind]
        return numbers.setdefault(name, f"{kind}-{len(numbers)}")
