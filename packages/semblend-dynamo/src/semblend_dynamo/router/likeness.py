"""Evidence for prompts that share no tokens with an earlier one: which of them read alike."""

from __future__ import annotations

import asyncio

from semblend_core import Namespace
from semblend_dynamo.evidence import Document, EvidenceWorker
from semblend_dynamo.placement import DonorKey
from semblend_dynamo.router.asked import Asked

_POLL_S = 0.002


class Likeness:
    """The evidence worker as a policy asks it. Its thread embeds; nobody waits longer than ``wait_ms``."""

    def __init__(self, worker: EvidenceWorker, weight: float, wait_ms: float) -> None:
        self._worker = worker
        self.weight = weight
        self._wait_s = wait_ms / 1000
        self._namespaces: dict[DonorKey, Namespace] = {}

    async def ask(self, asked: Asked, namespace: Namespace) -> dict[str, float]:
        """Similarity by donor; empty where none is like it, or the answer is not there in time."""
        if not self._worker.ask(asked.request_id, namespace, _document(asked)):
            return {}
        loop = asyncio.get_running_loop()
        end = loop.time() + self._wait_s
        while (found := self._worker.poll(asked.request_id)) is None and loop.time() < end:
            await asyncio.sleep(_POLL_S)
        return {each.donor_id: each.similarity for each in found or ()}

    def offer(self, namespace: Namespace, donor_id: str, asked: Asked) -> None:
        if self._worker.offer(namespace, donor_id, _document(asked)):
            self._namespaces[DonorKey(namespace.digest, donor_id)] = namespace

    def forget(self, key: DonorKey) -> None:
        namespace = self._namespaces.pop(key, None)
        if namespace is not None:
            self._worker.forget(namespace, key.donor_id)

    def close(self) -> None:
        self._worker.close()


def _document(asked: Asked) -> Document:
    return Document(asked.token_ids, text="".join(block.text for block in asked.blocks))
