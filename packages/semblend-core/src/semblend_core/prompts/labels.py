"""The marks by which people and programs say what a part of a prompt is: labels, headings, tags, chat markup."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from semblend_core.prompts.blocks import BlockKind, BlockType

_LEGAL = BlockKind.LEGAL_EVIDENCE

MOST_MARKS = 2_000
"""Marks of one sort that are looked at in a text: people write fewer, and one made of labels must not cost minutes."""

_NAMES: Mapping[str, tuple[BlockType, BlockKind | None]] = {
    **dict.fromkeys(("system", "system prompt", "developer"), (BlockType.SYSTEM, None)),
    **dict.fromkeys(
        ("user", "human", "question", "query", "user query", "user question", "task", "request", "input"),
        (BlockType.USER, None),
    ),
    **dict.fromkeys(
        (
            *("context", "retrieved context", "document", "documents", "passage", "passages", "source", "sources"),
            *("article", "reference", "references", "background", "knowledge", "search result", "search results"),
            *("record", "excerpt", "chunk"),
        ),
        (BlockType.RETRIEVED_CONTEXT, None),
    ),
    **dict.fromkeys(
        (
            *("evidence", "legal evidence", "exhibit", "clause", "contract", "statute", "deposition", "testimony"),
            *("affidavit", "agreement"),
        ),
        (BlockType.RETRIEVED_CONTEXT, _LEGAL),
    ),
    **dict.fromkeys(
        (
            *("tool", "tool output", "tool result", "tool response", "observation", "function", "function result"),
            *("api response", "ipython"),
        ),
        (BlockType.TOOL_OUTPUT, None),
    ),
    **dict.fromkeys(("assistant", "ai", "bot", "answer", "model"), (BlockType.ASSISTANT, None)),
    **dict.fromkeys(
        (
            *("template", "instructions", "instruction", "format", "output format", "response format", "rules"),
            *("guidelines", "schema", "example", "examples"),
        ),
        (BlockType.TEMPLATE, None),
    ),
    **dict.fromkeys(("code", "snippet", "source code", "file", "diff"), (BlockType.CODE, None)),
}
"""What each label says about the text behind it."""


def _alternatives(separator: str) -> str:
    names = sorted(_NAMES, key=len, reverse=True)
    return "|".join(re.escape(name).replace(r"\ ", separator) for name in names)


# A label is written large or with a capital: "user: " inside a sentence that was wrapped is not one.
# What a label can begin with is looked for first: blank lines and indentation are passed over quickly.
_LABEL = re.compile(
    rf"^[ \t]*(?=[\#*_\[A-Za-z])(?:\#{{1,6}}[ \t]+)?(?:\*\*|__)?\[?(?P<name>(?i:{_alternatives('[ _]')}))"
    r"(?:[ \t]+\#?(?:\d{1,6}|[A-Z]))?\]?(?:\*\*|__)?[ \t]*(?::(?:\*\*|__)?[ \t]?|(?=\n|$))",
    re.MULTILINE,
)
_TAG = re.compile(rf"<(?P<closing>/?)(?P<name>(?i:{_alternatives('[ _-]')}))s?(?:\s[^<>\n]{{0,200}})?>")
_CHATML = re.compile(r"<\|im_start\|>(?P<name>\w{1,20})\n?|<\|im_end\|>\n?")
_HEADERS = re.compile(r"<\|start_header_id\|>(?P<name>\w{1,20})<\|end_header_id\|>\n{0,2}|<\|eot_id\|>")
_FENCE = re.compile(r"^[ \t]*```[^\n`]{0,80}\n.*?(?:^[ \t]*```[ \t]*$\n?|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Mark:
    """``text[start:end]`` says what comes behind it; a fence is its own block and says nothing."""

    start: int
    end: int
    type: BlockType | None
    """None: what a tag or a turn introduced ends here."""
    kind: BlockKind | None = None
    fence: bool = False


def marks_in(text: str) -> list[Mark]:
    """In the order of the text, without overlaps. What stands inside a code fence marks nothing."""
    fenced = islice(_FENCE.finditer(text), MOST_MARKS)
    fences = [Mark(found.start(), found.end(), BlockType.CODE, fence=True) for found in fenced]
    others = [mark for pattern in (_CHATML, _HEADERS, _TAG, _LABEL) for mark in _marks_of(pattern, text)]
    chosen: list[Mark] = []
    for mark in sorted([*fences, *others], key=lambda mark: (mark.start, not mark.fence, -mark.end)):
        if not chosen or mark.start >= chosen[-1].end:
            chosen.append(mark)
    return chosen


def type_of_role(role: object) -> BlockType:
    """What a message of ``role`` is where nothing in it says otherwise."""
    name = role.lower() if isinstance(role, str) else ""
    return _NAMES.get(name, (BlockType.OTHER, None))[0]


def _marks_of(pattern: re.Pattern[str], text: str) -> Iterator[Mark]:
    for found in islice(pattern.finditer(text), MOST_MARKS):
        name = found.groupdict().get("name")
        if not name or found.groupdict().get("closing"):
            yield Mark(found.start(), found.end(), None)
            continue
        if pattern is _LABEL and not _is_written_as_a_label(found, name):
            continue
        type, kind = _NAMES.get(re.sub("[ _-]+", " ", name.lower()), (BlockType.OTHER, None))
        yield Mark(found.start(), found.end(), type, kind)


def _is_written_as_a_label(found: re.Match[str], name: str) -> bool:
    if name.islower() and not found.group().lstrip().startswith(("#", "[", "*", "_")):
        return False
    # Without a colon only a heading, a bracketed or a bold line is a label: "Task" alone may begin a sentence.
    return ":" in found.group() or found.group().lstrip().startswith(("#", "[", "**", "__"))
