"""What a look into the donor book gives: runs of the prompt, and the donors that hold them."""

from __future__ import annotations

from dataclasses import dataclass

from semblend_core import DeclineReason


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of the prompt's tokens that one donor holds too. Several donors may hold the same run."""

    target_start: int
    length: int
    donor_id: str
    donor_start: int

    @property
    def target_end(self) -> int:
        return self.target_start + self.length

    @property
    def donor_end(self) -> int:
        return self.donor_start + self.length

    def within(self, donor_tokens: int) -> Piece | None:
        """What is left of it where only the donor's first so many tokens are held; None: nothing."""
        length = min(self.length, donor_tokens - self.donor_start)
        return None if length < 1 else Piece(self.target_start, length, self.donor_id, self.donor_start)


@dataclass(frozen=True, slots=True)
class Finding:
    """All pieces of one prompt, or why there are none."""

    request_id: str
    prompt_tokens: int
    pieces: tuple[Piece, ...] = ()
    reason: DeclineReason | None = None
    """Why nothing was found; None where something was."""

    @property
    def donor_ids(self) -> tuple[str, ...]:
        """Those that hold most of the prompt first."""
        held: dict[str, int] = {}
        for piece in self.pieces:
            held[piece.donor_id] = held.get(piece.donor_id, 0) + piece.length
        return tuple(sorted(held, key=lambda donor_id: -held[donor_id]))

    def needed_of(self, donor_id: str) -> int:
        """How many of the donor's leading tokens reach to the end of its last piece."""
        return max((piece.donor_end for piece in self.pieces if piece.donor_id == donor_id), default=0)
