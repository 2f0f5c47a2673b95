"""What an embedder reads: the tokens of one prompt, and a way to its text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semblend_core.contract import TokenIds, as_token_ids


class NoTextError(ValueError):
    """The embedder reads text, and the document gives none."""


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One prompt. Cheap to build on the scheduler's thread: nothing is detokenized before ``read_text``."""

    token_ids: TokenIds
    """Read-only int32; writable input is copied."""
    text: str | None = None
    """The prompt's text where the caller has it already."""
    detokenize: Callable[[TokenIds], str] | None = None
    """Called at most once, on the evidence thread, when ``text`` is None. Must be safe to call from there."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", as_token_ids(self.token_ids))

    def read_text(self) -> str:
        """The text, detokenized now if need be. Not for the scheduler's thread."""
        if self.text is not None:
            return self.text
        if self.detokenize is None:
            raise NoTextError(
                "the minilm embedder needs text: give Document a text or a detokenize callable, "
                "or set SEMBLEND_EMBEDDER=jaccard"
            )
        return self.detokenize(self.token_ids)
