"""Prompts as typed blocks: what is a system prompt, retrieved context, a tool's output, and what only this user asked.

Blocks of different types come back differently often. Routers weigh them when they look for a replica, and eviction
policies when they choose what to keep. The rules are plain text rules: no model, no state, the same answer every time.
"""

from semblend_core.prompts.blocks import START_WEIGHTS, BlockKind, BlockType, PromptBlock, estimated_tokens
from semblend_core.prompts.classifying import classify_text
from semblend_core.prompts.segmenting import segment_messages, segment_request, segment_text

__all__ = [
    "START_WEIGHTS",
    "BlockKind",
    "BlockType",
    "PromptBlock",
    "classify_text",
    "estimated_tokens",
    "segment_messages",
    "segment_request",
    "segment_text",
]
