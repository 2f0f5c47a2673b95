"""One JSON line for each request, as ``sembench replay-trace`` reads them."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semblend_core.prompts import segment_request
from semblend_dynamo.gateway.identity import Caller

logger = logging.getLogger(__name__)

_MOST_WAITING = 512
"""Requests whose line is still to be written; further ones get none."""
_MOST_BYTES = 64 << 20
"""Bytes of their bodies, but for a single one that is larger."""


@dataclass(frozen=True)
class Traced:
    """What is known of a request when it is over."""

    caller: Caller
    body: Mapping[str, Any]
    timestamp_ms: float
    ttft_ms: float | None
    total_ms: float | None
    status: int
    prompt_tokens: int | None
    cached_tokens: int | None
    size: int = 0
    """Bytes of the body, which stays in memory until its line is written."""


class TraceWriter:
    """Writes on a thread of its own: a slow disk costs lines, and never a request.

    The file is for its owner alone. Redacted, it holds hashes, counts and types; tenants and sessions are hashed too.
    """

    def __init__(self, folder: Path, *, redact: bool, hash_key: str = "", limit: int = 1 << 30) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        self.path = folder / f"{stamp}_{os.getpid()}_{os.urandom(2).hex()}.jsonl"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._redact = redact
        self._key = hash_key.encode()
        self._limit = limit
        self._size = 0
        self._waiting = 0
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self.written = 0
        self.dropped = 0
        """Requests without a line: the queue was full, the file at its limit, or writing failed."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="semblend-proxy-traces")

    def write(self, traced: Traced) -> None:
        with self._lock:
            full = self._waiting >= _MOST_WAITING or self._waiting_bytes + traced.size > _MOST_BYTES
            if self._waiting and full:
                self.dropped += 1
                return
            self._waiting += 1
            self._waiting_bytes += traced.size
        self._thread.submit(self._write, traced)

    def close(self) -> None:
        """Writes what is queued."""
        self._thread.shutdown(wait=True)
        self._file.close()

    def _write(self, traced: Traced) -> None:
        try:
            line = json.dumps(self.record(traced), ensure_ascii=True).encode() + b"\n"
            if self._size + len(line) > self._limit:
                self.dropped += 1
                return
            self._file.write(line)
            self._size += len(line)
            self.written += 1
        except Exception as error:
            self.dropped += 1
            # The message could quote the prompt.
            logger.warning("a request could not be traced: %s", type(error).__name__)
        finally:
            with self._lock:
                self._waiting -= 1
                self._waiting_bytes -= traced.size

    def record(self, traced: Traced) -> dict[str, Any]:
        caller = traced.caller
        model = traced.body.get("model")
        cached, prompt = traced.cached_tokens, traced.prompt_tokens
        return {
            "request_id": caller.request_id,
            "timestamp_ms": round(traced.timestamp_ms, 3),
            "session_id": self._name(caller.session),
            "tenant_id": self._name(caller.tenant),
            "model_name": model if isinstance(model, str) else None,
            "status": traced.status,
            "blocks": [
                {
                    "block_id": f"{caller.request_id}-{block.position}",
                    "content_hash": self._hash(block.body.strip()),
                    "semantic_type": block.type.value,
                    "kind": block.kind.value if block.kind else None,
                    "token_count": block.tokens,
                    "position": block.position,
                    **({} if self._redact else {"text": block.text}),
                }
                for block in segment_request(traced.body)
            ],
            "observed_ttft_ms": _rounded(traced.ttft_ms),
            "observed_total_latency_ms": _rounded(traced.total_ms),
            "observed_prefix_hit_tokens": cached,
            "observed_prefill_tokens": None if prompt is None else prompt - (cached or 0),
        }

    def _name(self, text: str) -> str | None:
        if not text:
            return None
        return self._hash(text)[:16] if self._redact else text

    def _hash(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        digest = hmac.new(self._key, data, hashlib.sha256) if self._key else hashlib.sha256(data)
        return digest.hexdigest()[:32]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
