"""What a request that is done with leaves behind: an opening that many may ask for, and an answer to compare."""

from __future__ import annotations

from typing import Any

from semblend_core.serving import ANSWER_TOKENS, HotOpenings, QualityGuard, Stage, contained, token_ids_of
from semblend_vllm.scheduler.requests import Served, VllmRequest


class Leaving:
    """Asked when nobody waits for a first token."""

    def __init__(self, hot: HotOpenings[Any], guard: QualityGuard[Served], block_size: int) -> None:
        self._hot, self._guard, self._block_size = hot, guard, block_size

    def note_opening(self, life: VllmRequest) -> None:
        """Many may ask for what it began with."""
        if life.purged or life.stage not in (Stage.LOADING, Stage.REUSING):
            return
        if life.taken is not None:
            self._hot.note(life.taken.lineages, life.token_ids, life.taken.end, life.like)
        if life.lineage is not None:
            self._hot.note([life.lineage], life.token_ids, 0, life.like)

    @contained
    def note_answer(self, life: VllmRequest, longest_compared: int) -> None:
        """A share of the answers with reuse is compared with cold ones."""
        lineage, most = life.served_of, min(ANSWER_TOKENS, longest_compared - len(life.prompt))
        if most < 1 or lineage is None or not self._guard.wants(lineage):
            return
        served = Served.of(life, self._block_size)
        if served is not None:
            answer = token_ids_of(list(life.request.output_token_ids[:most]))
            self._guard.add(life.request_id, life.namespace, life.token_ids, answer, lineage, served)
