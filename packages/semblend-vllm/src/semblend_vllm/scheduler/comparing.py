"""Served answers are compared with cold ones while vLLM has room.

A request's answer is scored twice, as the end of a prompt whose logprobs are asked for. First behind the blocks that
the request was served with: vLLM still holds them under the names of their lineage, so only the answer is computed.
Then behind exact blocks, which are computed for it in small pieces, as hot openings are, and stay in vLLM's own cache.
Both are vLLM's own requests and its own sums, in batches of the same shape. So they differ by the KV alone.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from itertools import count
from typing import Any

from semblend_core.serving import Comparison, Wish, contained
from semblend_vllm.compat import scheduling as compat
from semblend_vllm.scheduler.background import PIECE_TOKENS
from semblend_vllm.scheduler.requests import Served, VllmRequest
from semblend_vllm.scheduler.side import SchedulerSide

logger = logging.getLogger(__name__)

PIECE_TOKENS_BESIDE_OTHERS = 256
"""Of the cold prompt, computed at a time: whoever decodes beside it waits for no more."""
MOST_INTERRUPTIONS = 32
"""After which a comparison is given up: the engine has no room."""


@dataclass(eq=False)
class _Scoring(VllmRequest):
    """One of our own whose names are given once: it reads what it is to be scored behind, and publishes nothing."""

    def untaint(self) -> None:
        """The names stay."""


@dataclass
class _UnderWay:
    comparison: Comparison[Served]
    request_id: str = ""
    scores: bool = False
    """Whether the request scores the answer, and is no piece of the cold prompt."""
    exact: int = -1
    """Tokens that were exact before the last piece; -1: there was none, or it was stopped."""
    interruptions: int = 0


class Comparing:
    """Adds requests of its own to a scheduler with room, one at a time."""

    def __init__(self, scheduler: Any, side: SchedulerSide) -> None:
        self._scheduler, self._side, self._guard = scheduler, side, side.guard
        self._block_size = int(scheduler.block_size)
        self._numbers = count()
        self._now: _UnderWay | None = None
        why = compat.why_not_scored(scheduler)
        if why is None:
            # One token is sampled behind it, and vLLM's buffers end where it lets no request go.
            side.longest_compared = int(scheduler.max_model_len) - 1
        else:
            self._guard.cannot(why)

    @contained
    def go_on(self) -> None:
        """Behind a step: begin what comes next, if there is room."""
        while self._side.longest_compared and (comparison := self._guard.next()) is not None:
            if self._request() is not None or not compat.has_room(self._scheduler):
                return
            if self._now is None or self._now.comparison is not comparison:
                self._now = _UnderWay(comparison)
            try:
                self._begin(self._now, comparison)  # Or it is dropped, and the next one's turn comes.
            except Exception:
                self._guard.drop(comparison, "failed")
                raise

    @contained
    def step_aside(self) -> None:
        """Before a step: somebody waits, or nobody wants the comparison any more."""
        request = self._request()
        if request is None or self._now is None or request.num_computed_tokens >= request.num_prompt_tokens:
            return
        self._drop_if_unloaded(self._now.comparison)
        life = self._side.requests.get(request.request_id)
        missed = life is not None and life.missed
        if missed and self._now.comparison.reused is None:
            self._guard.drop(self._now.comparison, "evicted")
        wanted = self._guard.is_waiting(self._now.comparison) and not missed
        if wanted and compat.has_room(self._scheduler, beside=request):
            return
        self._now.interruptions += 1
        self._abort(request)
        if self._now.interruptions > MOST_INTERRUPTIONS:
            self._guard.drop(self._now.comparison, "no_room")

    @contained
    def stop(self) -> None:
        """vLLM is about to empty its cache, which it refuses while somebody uses it."""
        request = self._request()
        if request is not None:
            self._abort(request)

    @contained
    def hear(self, scheduler_output: Any, model_runner_output: Any) -> None:
        """Before vLLM takes the results of a step: the scores of ours are for us alone."""
        under_way = self._now
        if under_way is None or not under_way.scores:
            return
        comparison = under_way.comparison
        scored = compat.take_scores(model_runner_output, under_way.request_id, comparison.answer.size)
        if scored is None:
            return
        under_way.scores = False
        computed = scheduler_output.num_scheduled_tokens[under_way.request_id]
        if comparison.reused is not None:
            self._guard.finish(comparison, scored)
        elif computed > comparison.text.size - len(comparison.note.names) * self._block_size:
            self._guard.drop(comparison, "evicted")  # Some of the blocks went at the last moment.
        else:
            comparison.reused = scored

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _begin(self, under_way: _UnderWay, comparison: Comparison[Served]) -> None:
        served = comparison.note
        whole = len(served.names) * self._block_size
        if self._drop_if_unloaded(comparison):
            return
        if under_way.scores:  # It has ended, and said nothing.
            self._guard.drop(comparison, "failed")
            return
        if comparison.reused is None:
            if compat.published_tokens(self._scheduler, served.names) < whole:
                self._guard.drop(comparison, "evicted")
                return
            self._score(under_way, served.names, served.approximate_from)
            return
        exact = compat.published_tokens(self._scheduler, served.hashes)
        if under_way.exact >= 0:
            self._side.provider.note_background(max(0, exact - under_way.exact))
        if exact >= whole:
            self._score(under_way, served.hashes, whole)
        elif exact <= under_way.exact:
            self._guard.drop(comparison, "no_room")  # A piece left nothing: its blocks were needed by others.
        else:
            alone = compat.is_idle(self._scheduler)
            under_way.exact = exact
            self._compute_piece(under_way, exact + (PIECE_TOKENS if alone else PIECE_TOKENS_BESIDE_OTHERS))

    def _drop_if_unloaded(self, comparison: Comparison[Served]) -> bool:
        unloaded = not self._side.may_repeat(comparison.note.like)
        if unloaded:
            self._guard.drop(comparison, "forgotten")
        return unloaded

    def _compute_piece(self, under_way: _UnderWay, end: int) -> None:
        served, tokens = under_way.comparison.note, under_way.comparison.prompt[:end].tolist()
        piece = compat.request_like(served.like, self._name("exact"), tokens, None)
        self._give_names(piece, served.hashes[: len(tokens) // self._block_size])
        under_way.request_id, under_way.scores = piece.request_id, False
        self._scheduler.add_request(piece)

    def _score(self, under_way: _UnderWay, names: list[Any], approximate_from: int) -> None:
        """Score the answer behind the blocks with these names."""
        comparison = under_way.comparison
        text = comparison.text.tolist()
        request = compat.request_like(comparison.note.like, self._name("scores"), text, None, scored=True)
        self._give_names(request, names)
        life = _Scoring(request, request.request_id, comparison.namespace, text, Wish("off", capture=False))
        life.approximate_from, life.captured = approximate_from, True
        # The scores of a whole prompt take more memory than vLLM has put by, and whoever decodes would wait for them.
        life.must_find = len(names) * self._block_size
        self._side.requests.add(life)
        under_way.request_id, under_way.scores, under_way.exact = request.request_id, True, -1
        self._scheduler.add_request(request)

    def _give_names(self, request: Any, names: list[Any]) -> None:
        """What is computed behind blocks with these is published under names that nobody will ever ask for."""
        blocks = (request.num_tokens + 1) // self._block_size
        nobodys = [os.urandom(len(names[0])) for _ in range(blocks - len(names))]
        request.block_hashes[:] = [*names, *nobodys]

    def _request(self) -> Any | None:
        return None if self._now is None else self._scheduler.requests.get(self._now.request_id)

    def _abort(self, request: Any) -> None:
        if self._now is not None:
            self._now.scores, self._now.exact = False, -1
        compat.abort(self._scheduler, request)

    def _name(self, what: str) -> str:
        return f"semblend-{what}-{next(self._numbers)}"
