"""What a prompt is made of."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class BlockType(StrEnum):
    SYSTEM = "system"
    USER = "user"
    RETRIEVED_CONTEXT = "retrieved_context"
    TOOL_OUTPUT = "tool_output"
    ASSISTANT = "assistant"
    TEMPLATE = "template"
    CODE = "code"
    OTHER = "other"


class BlockKind(StrEnum):
    """A closer word for some blocks of a type."""

    LEGAL_EVIDENCE = "legal_evidence"
    """Retrieved context: contracts, statutes, exhibits, testimony."""


START_WEIGHTS: Mapping[BlockType, float] = MappingProxyType(
    {
        BlockType.SYSTEM: 2.4,
        BlockType.TEMPLATE: 2.0,
        BlockType.CODE: 1.6,
        BlockType.RETRIEVED_CONTEXT: 1.4,
        BlockType.TOOL_OUTPUT: 1.1,
        BlockType.ASSISTANT: 1.0,
        BlockType.OTHER: 0.8,
        BlockType.USER: 0.7,
    }
)
"""How much a token of each type is worth keeping, before anything was learnt."""

_PIECE = re.compile(r"\w+|[^\w\s]")
_LETTERS_PER_TOKEN = 6
"""English words of up to six letters are mostly one token in the vocabularies of today."""


@dataclass(frozen=True)
class PromptBlock:
    """A stretch of a prompt that is of one type. The texts of a message's blocks, joined, are the message."""

    type: BlockType
    text: str
    """As it stands in the prompt, with the label that introduces it."""
    body: str
    """Without label, fence or tag: what identifies the block, wherever and under whatever number it stands."""
    tokens: int
    position: int
    """0 for a prompt's first block."""
    kind: BlockKind | None = None

    @property
    def content_hash(self) -> str:
        """The same for the same body in any prompt and any process."""
        return hashlib.sha256(self.body.strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]


def estimated_tokens(text: str) -> int:
    """How many tokens ``text`` has, roughly: for prompts whose tokenizer is not at hand."""
    return sum(-(-len(piece) // _LETTERS_PER_TOKEN) for piece in _PIECE.findall(text))
