"""The datasets of the published tables: their names, the fields of their rows, and the rows as sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sembench.manifests.longbench import V1_REPOSITORY, V1_REVISION, V1Row, document_id, make_source_v1, paraphrase
from sembench.manifests.source import Fact, SourceDocument
from sembench.schema import InputError

PARQUET = "refs/convert/parquet"
"""The hub's own conversion, for datasets that are a script there: scripts are no longer run."""
_ARTICLES = "|||||"
"""Between the articles of one row of Multi-News."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore")


class CnnDailyMailRow(_Row):
    article: str = Field(min_length=1)
    highlights: str = Field(min_length=1)
    id: str | None = None


class DocumentRow(_Row):
    """Multi-News and XSum."""

    document: str = Field(min_length=1)
    summary: str = Field(min_length=1)
    id: str | int | None = None


class SamsumRow(_Row):
    dialogue: str = Field(min_length=1)
    summary: str = Field(min_length=1)
    id: str | int | None = None


class WikiHowRow(_Row):
    text: str = Field(min_length=1)
    headline: str = Field(min_length=1)
    title: str | None = None


class ChatMessage(_Row):
    role: Literal["user", "assistant", "system"]
    content: str | None = None


class WildChatRow(_Row):
    conversation: list[ChatMessage] = Field(min_length=1)
    conversation_hash: str | None = None
    language: str | None = None
    toxic: bool = False


@dataclass(frozen=True)
class Reading:
    """What a row says: its text, what is asked of it, and what is accepted."""

    text: str
    question: str
    answers: tuple[str, ...]
    row_id: str | None = None
    domain: str | None = None
    """Where the rows of one dataset are about different things."""


@dataclass(frozen=True)
class PublishedDataset:
    name: str
    """As results call it, and the stem of a local file."""
    repository: str
    domain: str
    noun: str
    read: Callable[[dict[str, Any]], Reading | None]
    """A row as published. None: the row is left out, such as one in another language."""
    file: str | None = None
    """On the hub; None where it has to be downloaded by hand."""
    revision: str = "main"
    aliases: tuple[str, ...] = ()

    def is_called(self, name: str) -> bool:
        known = (self.name, self.repository, self.repository.partition("/")[2], *self.aliases)
        return name.lower() in {each.lower() for each in known}

    def source(self, row: dict[str, Any], place: str) -> SourceDocument | None:
        """``place`` names the row where its fields are not the published ones."""
        try:
            reading = self.read(row)
        except ValidationError as error:
            problem = error.errors()[0]
            raise InputError(f"{place}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
        if reading is None or not reading.text.strip():
            return None
        text = reading.text.strip()
        fact = Fact(reading.question, paraphrase(reading.question), reading.answers)
        row_id = reading.row_id or document_id(text)
        return SourceDocument(self.name, reading.domain or self.domain, row_id, self.noun, text, (fact,))


def _read_cnn(row: dict[str, Any]) -> Reading:
    told = CnnDailyMailRow.model_validate(row)
    return Reading(told.article, "Write a summary of the article.", (told.highlights,), told.id)


def _read_multi_news(row: dict[str, Any]) -> Reading:
    told = DocumentRow.model_validate(row)
    articles = [part.strip() for part in told.document.split(_ARTICLES) if part.strip()]
    return Reading("\n\n".join(articles), "Write a summary of the articles.", (told.summary.lstrip("–- "),))


def _read_xsum(row: dict[str, Any]) -> Reading:
    told = DocumentRow.model_validate(row)
    return Reading(told.document, "Write a summary of the article in one sentence.", (told.summary,), _text(told.id))


def _read_samsum(row: dict[str, Any]) -> Reading:
    told = SamsumRow.model_validate(row)
    return Reading(told.dialogue, "Write a summary of the dialogue.", (told.summary,), _text(told.id))


def _read_wikihow(row: dict[str, Any]) -> Reading:
    told = WikiHowRow.model_validate(row)
    text = f"{told.title}\n\n{told.text}" if told.title else told.text
    return Reading(text, "Write a summary of the instructions.", (" ".join(told.headline.split()),))


def _read_wildchat(row: dict[str, Any]) -> Reading | None:
    """The last thing the user asked is the question; what came before it is the document."""
    told = WildChatRow.model_validate(row)
    if told.toxic or told.language not in (None, "English"):
        return None
    said = [message for message in told.conversation if message.content and message.content.strip()]
    users = [number for number, message in enumerate(said) if message.role == "user"]
    if not users:
        return None
    last = users[-1]
    answers = tuple(message.content or "" for message in said[last + 1 :] if message.role == "assistant")
    request = said[last].content or ""
    if last == 0:
        return Reading(request, "Do what the user asks for.", answers, told.conversation_hash)
    history = "\n\n".join(f"{message.role.capitalize()}: {message.content}" for message in said[:last])
    return Reading(history, f"Reply to the user's next message: {request}", answers, told.conversation_hash)


def _read_longbench(row: dict[str, Any]) -> Reading:
    told = V1Row.model_validate(row)
    source = make_source_v1(told, told.dataset or "longbench")
    return Reading(source.document, source.facts[0].question, source.facts[0].answers, told.id_, source.domain)


def _text(value: str | int | None) -> str | None:
    return None if value is None else str(value)


PUBLISHED = (
    PublishedDataset(
        "cnn_dailymail",
        "abisee/cnn_dailymail",
        "news",
        "article",
        _read_cnn,
        "3.0.0/test-00000-of-00001.parquet",
        aliases=("cnn/dailymail", "cnn-dailymail"),
    ),
    PublishedDataset(
        "multi_news",
        "alexfabbri/multi_news",
        "news",
        "collection of articles",
        _read_multi_news,
        "default/test/0000.parquet",
        PARQUET,
        ("multinews",),
    ),
    PublishedDataset(
        "samsum", "knkarthick/samsum", "dialogue", "dialogue", _read_samsum, "test.csv", aliases=("Samsung/samsum",)
    ),
    PublishedDataset("xsum", "EdinburghNLP/xsum", "news", "article", _read_xsum, "default/test/0000.parquet", PARQUET),
    PublishedDataset(
        "wikihow",
        "wangwilliamyang/wikihow",
        "instructions",
        "set of instructions",
        _read_wikihow,
        None,
        aliases=("wikihowAll",),
    ),
    PublishedDataset("longbench", V1_REPOSITORY, "mixed", "document", _read_longbench, "data.zip", V1_REVISION),
    PublishedDataset(
        "wildchat",
        "allenai/WildChat-1M",
        "chat",
        "conversation",
        _read_wildchat,
        "data/train-00000-of-00014.parquet",
        aliases=("WildChat",),
    ),
)


def find_dataset(name: str) -> PublishedDataset:
    for dataset in PUBLISHED:
        if dataset.is_called(name):
            return dataset
    known = ", ".join(f"{dataset.name} ({dataset.repository})" for dataset in PUBLISHED)
    raise InputError(f"--datasets: {name!r} is none of {known}")
