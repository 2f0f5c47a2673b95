"""LongBench v1 and v2: the rows as sources, and the hub they lie on, at a pinned revision."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sembench.manifests.source import Fact, SourceDocument
from sembench.schema import InputError

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
_PARAPHRASES = (
    (
        re.compile(r"^(?:what|which) (is|are|was|were) (.+)\?$", re.IGNORECASE | re.DOTALL),
        r"Can you tell me what \2 \1?",
    ),
    (re.compile(r"^who (.+)\?$", re.IGNORECASE | re.DOTALL), r"Name the person or people who \1."),
    (re.compile(r"^when (.+)\?$", re.IGNORECASE | re.DOTALL), r"Give the time at which this holds: when \1?"),
    (re.compile(r"^where (.+)\?$", re.IGNORECASE | re.DOTALL), r"Name the place: where \1?"),
    (re.compile(r"^how (many|much) (.+)\?$", re.IGNORECASE | re.DOTALL), r"State how \1 \2."),
    (re.compile(r"^(?:please )?summari[sz]e (.+?)\.?$", re.IGNORECASE | re.DOTALL), r"Give a summary of \1."),
    (re.compile(r"^write (.+)$", re.IGNORECASE | re.DOTALL), r"Your job is to write \1"),
)
V1_REPOSITORY = "THUDM/LongBench"
V1_REVISION = "7956e94fb272285d5ed77fe3ba9843ed250ce6f4"
V2_REPOSITORY = "THUDM/LongBench-v2"
V2_REVISION = "2b48e494f2c7a2f0af81aae178e05c7e1dde0fe9"
_REACH_TIMEOUT_S = 5.0
_OFFLINE_HINT = "use --source DIR: a folder with one <dataset>.jsonl per dataset, in its own fields, or with text files"


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


def make_source_v1(row: V1Row, dataset: str) -> SourceDocument:
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
        Fact(question, paraphrase(question), tuple(row.answers)),
        {"language": row.language, "length": row.length},
    )


def make_source_v2(row: V2Row, dataset: str | None) -> SourceDocument:
    """``dataset`` where the rows lie in a file of their own; otherwise it is named after the row's domain."""
    choices = {letter: getattr(row, f"choice_{letter}") for letter in "ABCD"}
    listed = "\n".join(f"{letter}) {text}" for letter, text in choices.items())
    ending = f"\n{listed}\nAnswer with the letter."
    return _source(
        dataset or slug(row.domain),
        slug(row.domain),
        row.id_,
        row.context,
        Fact(row.question + ending, paraphrase(row.question) + ending, (row.answer, choices[row.answer])),
        {"sub_domain": row.sub_domain, "difficulty": row.difficulty, "length": row.length},
    )


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def document_id(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _source(
    dataset: str, domain: str, source_id: str, context: str, fact: Fact, metadata: dict[str, Any]
) -> SourceDocument:
    document = context.strip()
    known = {name: value for name, value in metadata.items() if value is not None}
    return SourceDocument(
        dataset=dataset,
        domain=domain,
        source_id=source_id,
        noun=_NOUNS.get(domain, "document"),
        document=document,
        facts=(fact,),
        metadata={**known, "document_id": document_id(document)},
    )


def paraphrase(question: str) -> str:
    """A long subject would read badly turned round, so beyond a dozen words the question is only introduced anew."""
    text = question.strip()
    if len(text.split()) <= 12:
        for pattern, replacement in _PARAPHRASES:
            turned, changed = pattern.subn(replacement, text)
            if changed:
                return turned
    return f"In other words, this is what I need to know: {text}"


def v1_file(dataset: str, revision: str) -> str:
    """The rows lie in an archive; its loading script, which newer versions of the package refuse, is not needed."""
    return f"zip://data/{dataset}.jsonl::hf://datasets/{V1_REPOSITORY}@{revision}/data.zip"


def v2_file(revision: str) -> str:
    return f"hf://datasets/{V2_REPOSITORY}@{revision}/data.json"


def hub_rows(file: str) -> Iterator[dict[str, Any]]:
    """The rows of a JSON, CSV or Parquet file, read through the package ``datasets``."""
    package = _datasets_package()
    if "hf://" in file:
        _check_reachable()
    kind = {"parquet": "parquet", "csv": "csv"}.get(file.rpartition(".")[2], "json")
    try:
        # Large files are read as far as they are wanted; what lies in an archive is small.
        rows = package.load_dataset(kind, data_files=file, split="train", streaming=kind != "json")
    except Exception as error:  # Each storage behind the package fails in its own way.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"--hf-revision: {file} could not be read: {reason}; {_OFFLINE_HINT}") from None
    yield from rows


def _datasets_package() -> Any:
    try:
        import datasets
    except ImportError:
        raise InputError(
            f"the package datasets is missing: pip install 'sembench[longbench]'; or {_OFFLINE_HINT}"
        ) from None
    return datasets


def _check_reachable() -> None:
    # Asked first: the hub's own client repeats itself for half a minute and more before it gives up.
    import httpx

    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        httpx.head(endpoint, timeout=_REACH_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(f"the dataset hub is not reachable ({error}); {_OFFLINE_HINT}") from None
