"""From a request's prompt to its typed blocks."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from semblend_core.prompts.blocks import BlockKind, BlockType, PromptBlock, estimated_tokens
from semblend_core.prompts.classifying import classify_text, words_in
from semblend_core.prompts.labels import marks_in, type_of_role

CountTokens = Callable[[str], int]

_CONTEXT_WORDS = 80
"""So many words beside a short question are what the question is about."""
_QUESTION_WORDS = 60
MOST_PARTS = 10_000
"""Messages, parts of a message or prompts of a batch that are looked at; further ones give no blocks."""
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n\s*")


@dataclass(frozen=True)
class _Piece:
    type: BlockType
    text: str
    body: str
    kind: BlockKind | None = None
    tokens: int | None = None
    """None: counted from the text."""


def segment_request(
    body: Mapping[str, object], *, count_tokens: CountTokens = estimated_tokens
) -> tuple[PromptBlock, ...]:
    """The blocks of an OpenAI request, of chat or of completions. What is not a prompt gives no blocks."""
    if "messages" in body:
        return _numbered([*_tools(body.get("tools")), *_messages(body["messages"])], count_tokens)
    return _numbered(list(_prompt(body.get("prompt"))), count_tokens)


def segment_messages(messages: object, *, count_tokens: CountTokens = estimated_tokens) -> tuple[PromptBlock, ...]:
    """The blocks of OpenAI chat messages. A message that is not understood gives no block."""
    return _numbered(list(_messages(messages)), count_tokens)


def segment_text(text: str, *, count_tokens: CountTokens = estimated_tokens) -> tuple[PromptBlock, ...]:
    """The blocks of a raw prompt, by its labels; ``"".join(block.text)`` is the prompt."""
    return _numbered(list(_pieces(text, BlockType.OTHER)), count_tokens)


def _numbered(pieces: Sequence[_Piece], count_tokens: CountTokens) -> tuple[PromptBlock, ...]:
    return tuple(
        PromptBlock(
            type=piece.type,
            text=piece.text,
            body=piece.body,
            tokens=count_tokens(piece.text) if piece.tokens is None else piece.tokens,
            position=position,
            kind=piece.kind,
        )
        for position, piece in enumerate(pieces)
    )


def _tools(tools: object) -> Iterator[_Piece]:
    # Chat templates write the tools' schemas into the prompt, the same for every request of an application.
    if isinstance(tools, list) and tools:
        yield _whole(BlockType.TEMPLATE, _canonical(tools))


def _messages(messages: object) -> Iterator[_Piece]:
    for message in messages[:MOST_PARTS] if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        otherwise = type_of_role(message.get("role"))
        content = message.get("content")
        for part in content[:MOST_PARTS] if isinstance(content, list) else [content]:
            yield from _part(part, otherwise)
        if message.get("tool_calls"):
            yield _whole(BlockType.ASSISTANT, _canonical(message["tool_calls"]))


def _part(part: object, otherwise: BlockType) -> Iterator[_Piece]:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        part = part["text"]
    if isinstance(part, str):
        yield from _pieces(part, otherwise)
    elif part is not None:
        # Images and sounds: known again by their digest, and never carried along.
        yield _whole(BlockType.OTHER, f"[part sha256:{hashlib.sha256(_canonical(part).encode()).hexdigest()}]")


def _prompt(prompt: object) -> Iterator[_Piece]:
    if isinstance(prompt, str):
        yield from _pieces(prompt, BlockType.OTHER)
    elif isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        digest = hashlib.sha256(_canonical(prompt).encode()).hexdigest()
        text = f"[token ids sha256:{digest}]"
        yield _Piece(BlockType.OTHER, text, text, tokens=len(prompt))
    elif isinstance(prompt, list):
        for each in prompt[:MOST_PARTS]:
            if isinstance(each, str | list):
                yield from _prompt(each)


def _pieces(text: str, otherwise: BlockType) -> Iterator[_Piece]:
    """``text`` cut at its marks, each of its characters in one piece. A piece without a body joins its neighbour."""
    carried, last = "", None
    for piece in _cut_at_marks(text, otherwise):
        if not piece.body.strip():
            carried += piece.text
            continue
        if last is not None:
            yield last
        last, carried = replace(piece, text=carried + piece.text), ""
    if last is not None:
        yield replace(last, text=last.text + carried)
    elif carried.strip():
        yield _Piece(otherwise, carried, carried)


def _cut_at_marks(text: str, otherwise: BlockType) -> Iterator[_Piece]:
    type, kind, labelled = otherwise, None, False
    start = body_start = 0
    for mark in marks_in(text):
        yield from _section(text[start : mark.start], body_start - start, type, kind, labelled)
        if mark.fence:
            fenced = text[mark.start : mark.end]
            yield _Piece(BlockType.CODE, fenced, _inside_fence(fenced))
            # Behind the fence the section goes on as what it was.
            start = body_start = mark.end
            continue
        type, kind, labelled = mark.type or otherwise, mark.kind, mark.type is not None
        start, body_start = mark.start, mark.end
    yield from _section(text[start:], body_start - start, type, kind, labelled)


def _section(text: str, label: int, type: BlockType, kind: BlockKind | None, labelled: bool) -> Iterator[_Piece]:
    """``text``, whose first ``label`` characters say what it is where it is ``labelled``."""
    if labelled:
        # A label is believed, but for code, and for context that shows itself to be legal.
        shown, closer = classify_text(text[label:], type)
        shown = shown if shown is BlockType.CODE and type is not BlockType.SYSTEM else type
        yield _Piece(shown, text, text[label:], kind or (closer if shown is BlockType.RETRIEVED_CONTEXT else None))
        return
    cut = _question_beside_context(text) if type in (BlockType.USER, BlockType.OTHER) else None
    if cut is None:
        yield from _unlabelled(text, label, type)
        return
    before, passage, behind = text[: cut[0]], text[cut[0] : cut[1]], text[cut[1] :]
    if before:
        yield from _unlabelled(before, label, BlockType.USER)
    yield from _unlabelled(passage, 0 if before else label, BlockType.RETRIEVED_CONTEXT)
    if behind:
        yield from _unlabelled(behind, 0, BlockType.USER)


def _unlabelled(text: str, label: int, otherwise: BlockType) -> Iterator[_Piece]:
    type, kind = classify_text(text[label:], otherwise)
    yield _Piece(type, text, text[label:], kind)


def _question_beside_context(text: str) -> tuple[int, int] | None:
    """Where a long passage begins and ends that has a short paragraph before or behind it; None: there is none."""
    ends = [found.end() for found in _PARAGRAPH_END.finditer(text)]
    if not ends:
        return None
    first, last = ends[0], ends[-1]
    start = first if words_in(text[:first]) <= _QUESTION_WORDS else 0
    end = last if last > start and words_in(text[last:]) <= _QUESTION_WORDS else len(text)
    if (start, end) == (0, len(text)) or words_in(text[start:end]) < _CONTEXT_WORDS:
        return None
    return start, end


def _inside_fence(fenced: str) -> str:
    lines = fenced.splitlines()
    closed = len(lines) > 1 and lines[-1].strip() == "```"
    return "\n".join(lines[1:-1] if closed else lines[1:])


def _whole(type: BlockType, text: str) -> _Piece:
    return _Piece(type, text, text)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
