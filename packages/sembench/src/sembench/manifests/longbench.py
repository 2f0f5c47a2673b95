"""Rows of LongBench v1 and v2 as sources."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sembench.manifests.paraphrase import paraphrased
from sembench.manifests.source import Fact, Source

V1_DATASETS = (
    "qasper",
    "multifieldqa_en",
    "hotpotqa",
    "2wikimqa",
    "musique",
    "gov_report",
    "qmsum",
    "multi_news",
    "lcc",
    "repobench-p",
)
"""What is built where no datasets are named: the English and code sets of the usual invocation."""

_DOMAINS = {
    "encyclopedia": (
        "hotpotqa",
        "2wikimqa",
        "musique",
        "triviaqa",
        "passage_count",
        "passage_retrieval_en",
        "dureader",
    ),
    "science": ("qasper",),
    "fiction": ("narrativeqa",),
    "mixed": ("multifieldqa_en", "multifieldqa_zh"),
    "government": ("gov_report",),
    "meetings": ("qmsum", "vcsum"),
    "news": ("multi_news", "lsht"),
    "dialogue": ("samsum",),
    "questions": ("trec",),
    "code": ("lcc", "repobench-p"),
    "encyclopedia_zh": ("passage_retrieval_zh",),
}
_DOMAIN_OF = {dataset: domain for domain, datasets in _DOMAINS.items() for dataset in datasets}
"""Sets over the same texts are one domain: articles of one encyclopedia stand in several of them."""
_NOUNS = {
    "science": "scientific article",
    "fiction": "story",
    "government": "report",
    "meetings": "meeting transcript",
    "news": "collection of articles",
    "code": "source code",
}
_TASKS = {
    "gov_report": "Write a summary of the report.",
    "multi_news": "Write a summary of the articles.",
    "vcsum": "Write a summary of the meeting.",
    "lcc": "Write the next line of the code.",
    "passage_count": "How many different passages are there?",
}
"""Where a row has no question of its own."""


class V1Row(BaseModel):
    model_config = ConfigDict(extra="ignore")

    context: str = Field(min_length=1)
    answers: list[str]
    input: str = ""
    id_: str = Field(alias="_id", min_length=1)
    dataset: str | None = None
    language: str | None = None
    length: int | None = None


class V2Row(BaseModel):
    model_config = ConfigDict(extra="ignore")

    context: str = Field(min_length=1)
    question: str = Field(min_length=1)
    choice_A: str  # noqa: N815 - the names of the published format
    choice_B: str  # noqa: N815
    choice_C: str  # noqa: N815
    choice_D: str  # noqa: N815
    answer: Literal["A", "B", "C", "D"]
    id_: str = Field(alias="_id", min_length=1)
    domain: str = "unknown"
    sub_domain: str | None = None
    difficulty: str | None = None
    length: str | None = None


def source_of_v1(row: V1Row, dataset: str) -> Source:
    task = _TASKS.get(dataset, "Continue the text.")
    question = row.input.strip() or task
    if dataset == "repobench-p" and row.input.strip():
        question = f"Write the next line of this code, which uses the code above:\n{row.input.rstrip()}"
    domain = _DOMAIN_OF.get(dataset, dataset)
    return _source(
        dataset,
        domain,
        row.id_,
        row.context,
        Fact(question, paraphrased(question), tuple(row.answers)),
        {"language": row.language, "length": row.length},
    )


def source_of_v2(row: V2Row, dataset: str | None) -> Source:
    """``dataset`` where the rows lie in a file of their own; otherwise it is named after the row's domain."""
    choices = {letter: getattr(row, f"choice_{letter}") for letter in "ABCD"}
    listed = "\n".join(f"{letter}) {text}" for letter, text in choices.items())
    ending = f"\n{listed}\nAnswer with the letter."
    return _source(
        dataset or slug(row.domain),
        slug(row.domain),
        row.id_,
        row.context,
        Fact(row.question + ending, paraphrased(row.question) + ending, (row.answer, choices[row.answer])),
        {"sub_domain": row.sub_domain, "difficulty": row.difficulty, "length": row.length},
    )


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def document_id(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _source(dataset: str, domain: str, source_id: str, context: str, fact: Fact, metadata: dict[str, Any]) -> Source:
    document = context.strip()
    known = {name: value for name, value in metadata.items() if value is not None}
    return Source(
        dataset=dataset,
        domain=domain,
        source_id=source_id,
        noun=_NOUNS.get(domain, "document"),
        document=document,
        facts=(fact,),
        metadata={**known, "document_id": document_id(document)},
    )
