"""Openings that many ask for are computed exactly while vLLM has nothing else to do."""

from __future__ import annotations

import logging
from itertools import count
from typing import Any

from semblend_core.serving import Opening, contained
from semblend_vllm.compat import scheduling as compat
from semblend_vllm.scheduler.side import SchedulerSide

logger = logging.getLogger(__name__)

PIECE_TOKENS = 1024
"""Computed at a time: whoever comes meanwhile waits for no more."""


class Background:
    """Adds requests of its own to an idle scheduler, one small piece of an opening after the other.

    Each finds what the last one published. So it can be dropped at any time, and goes on where it was.
    """

    def __init__(self, scheduler: Any, side: SchedulerSide) -> None:
        self._scheduler, self._side = scheduler, side
        self._numbers = count()
        self._piece: tuple[str, int, Opening[Any]] | None = None
        """The request under way, the tokens that were exact before it, and whose they are."""
        self._known: tuple[Opening[Any], list[Any]] | None = None
        """The hashes of the opening at hand."""
        # Without its prefix caching vLLM keeps nothing of what is computed.
        self._may_work = compat.keeps_prefixes(scheduler) and not compat.has_replicas(scheduler)

    @property
    def is_busy(self) -> bool:
        return self._under_way() is not None

    @contained
    def go_on(self) -> None:
        """Behind a step: begin the next piece, if there is nothing else to do."""
        opening = self._side.hot.next()
        if opening is None:
            if self._under_way() is None:
                self._piece = self._known = None  # Its tenant may have been purged.
            return
        if not self._may_work or not compat.is_idle(self._scheduler):
            return
        if not self._side.may_repeat(opening.note[0]):
            self._side.hot.done(opening)
            return
        hashes = self._hashes_of(opening)
        exact = compat.published_tokens(self._scheduler, hashes)
        last, self._piece = self._piece, None
        before = last[1] if last is not None and last[2] is opening else None
        if before is not None:
            self._side.provider.note_background(max(0, exact - before))
        stuck = before is not None and exact <= before
        if stuck or exact >= len(hashes) * int(self._scheduler.block_size):
            self._side.hot.done(opening)
            if not stuck:
                logger.info("an opening of %d tokens that many asked for is exact now", len(opening.token_ids))
            return
        piece = self._request(opening, min(exact + PIECE_TOKENS, len(opening.token_ids)))
        self._piece = (piece.request_id, exact, opening)
        self._scheduler.add_request(piece)

    @contained
    def step_aside(self) -> None:
        """Before a step: somebody has come, and what is left of a piece can wait; or its adapter is gone."""
        request = self._under_way()
        if request is None or request.num_computed_tokens >= request.num_prompt_tokens:
            return
        if not compat.is_alone(self._scheduler, request) or not self._side.may_repeat(request):
            self._piece = None
            compat.abort(self._scheduler, request)

    @contained
    def stop(self) -> None:
        """vLLM is about to empty its cache, which it refuses while somebody uses it."""
        request = self._under_way()
        if request is not None:
            self._piece = None
            compat.abort(self._scheduler, request)

    def _under_way(self) -> Any | None:
        return None if self._piece is None else self._scheduler.requests.get(self._piece[0])

    def _hashes_of(self, opening: Opening[Any]) -> list[Any]:
        """Made once for all its pieces: a long opening has thousands."""
        if self._known is None or self._known[0] is not opening:
            self._known = opening, self._request(opening, len(opening.token_ids)).block_hashes
        return self._known[1]

    def _request(self, opening: Opening[Any], tokens: int) -> Any:
        name = f"semblend-exact-{next(self._numbers)}"
        like, make_hashes = opening.note
        return compat.request_like(like, name, opening.token_ids[:tokens].tolist(), make_hashes)
