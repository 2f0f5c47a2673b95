"""Evidence beside the decision: which donors a prompt without spans merely reads like."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

from semblend_core import Namespace, TokenIds, require_extra
from semblend_dynamo.dynamo.requests import RoutedRequest
from semblend_dynamo.evidence import Document, EvidenceWorker
from semblend_dynamo.placement.account import Account

POLL_EVERY_S = 0.0005
PATIENCE = 8
"""Answers that came too late, one after the other, after which requests no longer wait for theirs."""
TRY_AGAIN_EVERY = 64
"""Of the requests that do not wait any more, one in so many does, to see whether answers are quick again."""


class Likeness:
    """Asks only for prompts without spans. One that has spans is never delayed."""

    def __init__(
        self,
        evidence: EvidenceWorker,
        account: Account,
        *,
        wait_ms: float,
        detokenize: Callable[[TokenIds], str] | None,
    ) -> None:
        self._evidence = evidence
        self._account = account
        self._wait_s = wait_ms / 1e3
        self._detokenize = detokenize
        self._late_in_a_row = 0
        self._asked = 0

    def offer(self, namespace: Namespace, donor_id: str, token_ids: TokenIds) -> None:
        self._evidence.offer(namespace, donor_id, self._document(token_ids))

    def forget(self, namespace: Namespace, donor_id: str) -> None:
        self._evidence.forget(namespace, donor_id)

    async def of(self, request: RoutedRequest) -> dict[str, float]:
        """Similarity by donor; empty: none is like it, or the answer was not there in time."""
        if not self._evidence.ask(request.request_id, request.namespace, self._document(request.token_ids)):
            self._account.count("likeness_dropped")
            return {}
        self._asked += 1
        self._account.count("likeness_asked")
        patient = self.waits or self._asked % TRY_AGAIN_EVERY == 0
        deadline = time.perf_counter() + (self._wait_s if patient else 0.0)
        # The thread that answers needs a chance to run, whatever the wait.
        while (answer := self._evidence.poll(request.request_id)) is None and time.perf_counter() < deadline:
            await asyncio.sleep(POLL_EVERY_S)
        if answer is None:
            self._late_in_a_row += 1
            self._account.count("likeness_late")
            return {}
        self._late_in_a_row = 0
        self._account.count("likeness_found" if answer else "likeness_none")
        return {each.donor_id: each.similarity for each in answer}

    @property
    def waits(self) -> bool:
        """Whether requests still wait for their answers; not where too many came too late."""
        return self._late_in_a_row < PATIENCE

    def close(self) -> None:
        self._evidence.close()

    def _document(self, token_ids: TokenIds) -> Document:
        return Document(token_ids, detokenize=self._detokenize)


class ModelTokenizer:
    """Turns tokens into text with the model's own tokenizer, which is read when the first text is wanted."""

    def __init__(self, model_path: str) -> None:
        self._file = Path(model_path) / "tokenizer.json"
        self._lock = threading.Lock()
        self._decode: Callable[[list[int]], str] | None = None

    def __call__(self, token_ids: TokenIds) -> str:
        with self._lock:
            if self._decode is None:
                tokenizers = require_extra("tokenizers", distribution="semblend-dynamo", extra="onnx")
                self._decode = tokenizers.Tokenizer.from_file(str(self._file)).decode
            decode = self._decode
        return decode(token_ids.tolist())
