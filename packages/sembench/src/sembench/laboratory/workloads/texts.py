"""Prompts of a workload as OpenAI messages with text, for collectors and live servers."""

from __future__ import annotations

import random
from typing import Any

from sembench.laboratory.requests import CacheRequest

_TEXT = (
    "account agent answer archive batch border branch budget cable cargo case chart claim clause client cloud "
    "code column copper court cycle data delay depot design device domain draft driver edge engine entry event "
    "factor field filter flight format frame garden gauge grain grid group guide harbor index inlet input intake "
    "invoice item joint journal kernel label layer ledger letter limit line loan lot margin market matter meter "
    "method metric mirror model module motor note notice object offer office option order output packet panel "
    "parcel part patch path period phase plan plant plate point policy port price print process product query "
    "queue range rate reader record region report result river road route rule sample scale schedule screen "
    "section sensor series service shaft sheet shift signal site source stage station status step stock store "
    "stream summary supply switch system table target task tenant term test thread ticket title token tool topic "
    "track train transfer transit unit update value valve vendor version"
)
_WORDS = _TEXT.split(" ")
_ROLES = {"system": "system", "template": "system", "assistant": "assistant", "tool_output": "tool"}
_LABELS = {
    "template": "TEMPLATE: ",
    "retrieved_context": "CONTEXT: ",
    "legal_evidence": "EVIDENCE: ",
    "tool_output": "TOOL OUTPUT: ",
    "code": "CODE: ",
    "user": "USER: ",
}


def messages_of(request: CacheRequest) -> list[dict[str, Any]]:
    """One message per block, with a label where a role alone does not tell what it is."""
    return [
        {"role": _ROLES.get(kind, "user"), "content": f"{_LABELS.get(kind, '')}{_text(key, tokens)}"}
        for key, kind, tokens in zip(request.keys, request.kinds, request.tokens, strict=True)
    ]


def _text(key: int, tokens: int) -> str:
    """The same words for the same block, about one token each."""
    dice = random.Random(key)
    words = dice.choices(_WORDS, k=max(1, tokens))
    return " ".join(" ".join(words[start : start + 12]) + "." for start in range(0, len(words), 12))
