"""Openings that many ask for are computed exactly while SGLang has nothing else to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from semblend_core.serving import HotOpenings, Opening, contain
from semblend_core.serving.tree import ExactTree
from semblend_sglang.scheduler.orders import Asker, Order

logger = logging.getLogger(__name__)

PIECE_TOKENS = 1024
"""Computed at a time: whoever comes meanwhile waits for no more."""


@dataclass(frozen=True, slots=True)
class Piece:
    opening: Opening[Asker]
    exact_tokens: int
    """Of the opening, before the piece is computed."""
    end: int

    @property
    def order(self) -> Order:
        return Order(self.opening.token_ids[: self.end], self.opening.note)


class Background:
    """Hands out one small piece of an opening after the other. Each begins behind what the last one left in the tree.

    So nothing is remembered between two of them, and any of them can fail to be computed.
    """

    def __init__(self, hot: HotOpenings[Asker], tree: ExactTree, count: Callable[[int], None]) -> None:
        """``count``: is told of the tokens that have become exact."""
        self._hot, self._tree, self._count = hot, tree, count

    @property
    def has_work(self) -> bool:
        return self._hot.next() is not None

    def next_piece(self) -> Piece | None:
        """What to compute now; None: nothing. An opening that the tree holds by now is done."""
        opening = self._hot.next()
        if opening is None:
            return None
        exact = contain("looking for an exact opening", self._exact_tokens, opening)
        whole = opening.token_ids.size // self._tree.page_size * self._tree.page_size
        if exact is None or exact >= whole:
            self._hot.done(opening)
            return None
        return Piece(opening, exact, min(exact + PIECE_TOKENS, whole))

    def computed(self, piece: Piece) -> None:
        """SGLang is through with it. Where that brought nothing, as without room, the opening is given up."""
        exact = contain("looking for an exact opening", self._exact_tokens, piece.opening) or 0
        gained = max(0, exact - piece.exact_tokens)
        contain("counting what is exact", self._count, gained)
        if not gained:
            self._hot.done(piece.opening)
        elif piece.opening.token_ids.size - exact < self._tree.page_size:
            logger.info("an opening of %d tokens that many asked for is exact now", piece.opening.token_ids.size)

    def _exact_tokens(self, opening: Opening[Asker]) -> int:
        return self._tree.find(self._tree.tokens_of(opening.token_ids), opening.note.key).length
