"""What a text is where no label says so."""

from __future__ import annotations

import re

from semblend_core.prompts.blocks import BlockKind, BlockType

_LEGAL_WORDS = re.compile(
    r"\b(?:whereas|hereinafter|herein|thereof|hereto|hereby|plaintiff|defendant|pursuant to|indemnif\w+|liabilit\w+"
    r"|governing law|witnesseth|lessee|lessor|licensee|licensor|affidavit|deposition"
    r"|exhibit [A-Z0-9]|section \d+(?:\.\d+)*|the parties|breach|arbitration)\b",
    re.IGNORECASE,
)
_LEGAL_STEMS = (
    *("whereas", "herein", "thereof", "hereto", "hereby", "plaintiff", "defendant", "pursuant", "indemnif", "liabilit"),
    *("governing law", "witnesseth", "lesse", "lessor", "licens", "affidavit", "deposition", "exhibit", "section"),
    *("the parties", "breach", "arbitration"),
)
"""One of these is in every legal term: most texts have none, and are spared the slower search."""
_LEGAL_AT_LEAST = 4
_LEGAL_WORDS_PER = 60
"""One legal term for so many words makes a legal text."""

# For a line without its indentation: a search that also looked for that would take a square's time on a line of blanks.
_CODE_LINE = re.compile(
    r"(?:def |class |import |from \S+ import |return\b|if .*[:{]$|for .*[:{]$|while .*[:{]$|\#include"
    r"|public |private |function |const |let |var |fn |func |package |@\w+|[})\]];?$|.*[;{]$|//|/\*|\*/)"
)
_CODE_LINES_AT_LEAST = 3
_CODE_SHARE = 0.4

_PLACEHOLDER = re.compile(r"\{\{?\s*[A-Za-z_][\w.]{0,40}\s*\}?\}|<[A-Z][A-Z_ ]{1,30}>|\[[A-Z][A-Z_ ]{2,30}\]")
_PLACEHOLDERS_AT_LEAST = 2

_DATA_OPENING = re.compile(r"\s*[\[{]")
_DATA_FIELD = re.compile(r'"[^"\n]{1,80}"\s*:')
_DATA_FIELDS_AT_LEAST = 3

_WORD = re.compile(r"\w+")


def classify_text(text: str, otherwise: BlockType) -> tuple[BlockType, BlockKind | None]:
    """What ``text`` shows itself to be: code, data, legal text or a template with holes; else ``otherwise``."""
    if _is_code(text):
        return BlockType.CODE, None
    if otherwise in (BlockType.USER, BlockType.OTHER, BlockType.RETRIEVED_CONTEXT) and is_legal(text):
        return BlockType.RETRIEVED_CONTEXT, BlockKind.LEGAL_EVIDENCE
    if otherwise in (BlockType.USER, BlockType.OTHER) and _is_data(text):
        return BlockType.TOOL_OUTPUT, None
    if otherwise in (BlockType.SYSTEM, BlockType.USER, BlockType.OTHER) and _is_template(text):
        return BlockType.TEMPLATE, None
    return otherwise, None


def is_legal(text: str) -> bool:
    lowered = text.lower()
    if not any(stem in lowered for stem in _LEGAL_STEMS):
        return False
    terms = len(_LEGAL_WORDS.findall(text))
    return terms >= _LEGAL_AT_LEAST and terms * _LEGAL_WORDS_PER >= words_in(text)


def words_in(text: str) -> int:
    return len(_WORD.findall(text))


def _is_code(text: str) -> bool:
    lines = [line for line in map(str.lstrip, text.splitlines()) if line]
    like_code = sum(bool(_CODE_LINE.match(line)) for line in lines)
    return like_code >= _CODE_LINES_AT_LEAST and like_code >= _CODE_SHARE * len(lines)


def _is_data(text: str) -> bool:
    return bool(_DATA_OPENING.match(text)) and len(_DATA_FIELD.findall(text)) >= _DATA_FIELDS_AT_LEAST


def _is_template(text: str) -> bool:
    return len(_PLACEHOLDER.findall(text)) >= _PLACEHOLDERS_AT_LEAST
