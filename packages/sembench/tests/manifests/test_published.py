"""published-v1: rows as the datasets publish them, packed into prompts of a wanted length."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from sembench.identity import load_manifest
from sembench.manifests.published import PUBLISHED, find_dataset
from sembench.schema import ManifestItem

Command = Callable[..., Result]


def prose(name: str, row: int, sentences: int = 30) -> str:
    return " ".join(
        f"The {name} desk noted on day {row * 100 + n} that {n * 37 + row} people came to hall {row}-{n} for the talk."
        for n in range(sentences)
    )


PUBLISHED_ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    "cnn_dailymail": lambda row: {
        "article": prose("cnn", row),
        "highlights": f"Hall {row} was full .\nMore talks follow .",
        "id": f"{row:040x}",
    },
    "multi_news": lambda row: {
        "document": f"{prose('first', row, 12)} ||||| {prose('second', row, 12)} |||||",
        "summary": f"– Hall {row} was full twice.",
    },
    "samsum": lambda row: {
        "id": f"1381{row:04d}",
        "dialogue": f"Amanda: I baked {row} cookies. Some for you?\r\nJerry: Sure!\r\nAmanda: I'll bring you {row}.",
        "summary": f"Amanda baked {row} cookies.",
    },
    "xsum": lambda row: {"document": prose("xsum", row), "summary": f"Hall {row} was full.", "id": str(35232142 + row)},
    "wikihow": lambda row: {
        "headline": f"\nFill hall {row}.\nClose the doors.",
        "title": f"How to Fill Hall {row}",
        "text": prose("wikihow", row),
    },
    "longbench": lambda row: {
        "input": "Which desk noted it?",
        "context": prose("qasper", row),
        "answers": ["The qasper desk"],
        "length": 600,
        "dataset": "qasper",
        "language": "en",
        "all_classes": None,
        "_id": f"{row:048x}",
    },
    "wildchat": lambda row: {
        "conversation_hash": f"{row:032x}",
        "model": "gpt-4-0314",
        "timestamp": "2023-04-09T00:00:00+00:00",
        "conversation": [
            {"content": prose("chat", row, 8), "role": "user", "language": "English", "toxic": False},
            {"content": f"Hall {row} it is.", "role": "assistant", "language": "English", "toxic": False},
            {"content": "And which hall comes next?", "role": "user", "language": "English", "toxic": False},
            {"content": f"Hall {row + 1}.", "role": "assistant", "language": "English", "toxic": False},
        ],
        "turn": 2,
        "language": "English",
        "toxic": False,
        "redacted": False,
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All seven datasets; SAMSum and WikiHow as the CSV files that they are published as."""
    place = tmp_path / "rows"
    (place / "longbench").mkdir(parents=True)
    for name, row in PUBLISHED_ROWS.items():
        rows = [row(number) for number in range(60 if name == "samsum" else 8)]
        if name in ("samsum", "wikihow"):
            with (place / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(rows)
        else:
            path = place / "longbench" / "qasper.jsonl" if name == "longbench" else place / f"{name}.jsonl"
            path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return place


def build(sembench: Command, folder: Path, *words: object) -> list[ManifestItem]:
    output = folder.parent / "m.jsonl"
    done = sembench("build", "--profile", "published-v1", "--source", folder, "-o", output, *words)
    assert done.exit_code == 0, done.output
    return load_manifest(output)


def test_every_dataset_is_read_in_its_published_form(sembench: Command, folder: Path) -> None:
    items = build(sembench, folder, "--length-bands", "1k", "--transforms", "instruction_variant")
    assert {item.dataset for item in items} == {dataset.name for dataset in PUBLISHED}
    for item in items:
        assert item.answers
        assert item.input in item.recipient_prompt


@pytest.mark.parametrize("tokens", [600, 1_500])
def test_prompts_are_as_long_as_asked_for(sembench: Command, folder: Path, tokens: int) -> None:
    for item in build(sembench, folder, "--length-bands", tokens, "--transforms", "instruction_variant"):
        assert 0.85 * tokens < item.metadata["estimated_tokens"] < 1.15 * tokens, item.dataset
        assert item.metadata["length_band"] == tokens


def test_lengths_are_counted_with_a_tokenizer_where_one_is_named(sembench: Command, folder: Path) -> None:
    words = ("--length-bands", "1500", "--transforms", "instruction_variant", "--datasets", "xsum")
    estimated, counted = build(sembench, folder, *words), build(sembench, folder, *words, "--tokenizer", "words-v1")
    assert counted[0].metadata["builder"]["options"]["lengths_counted_by"] == "words-v1"
    assert len(counted[0].recipient_prompt) > len(estimated[0].recipient_prompt), "a word may be several pieces"


def test_parquet_is_read_through_the_package(
    sembench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rows").mkdir()
    rows = package.Dataset.from_list([PUBLISHED_ROWS["wildchat"](number) for number in range(6)])
    rows.to_parquet(tmp_path / "rows" / "wildchat.parquet")
    words = ("--length-bands", "400", "--transforms", "instruction_variant")
    assert [item.dataset for item in build(sembench, tmp_path / "rows", *words)] == ["wildchat"]


def test_several_rows_in_one_prompt_are_numbered_and_one_of_them_is_asked_about(
    sembench: Command, folder: Path
) -> None:
    words = ("--datasets", "samsum", "--length-bands", "1k", "--transforms", "instruction_variant")
    (item,) = build(sembench, folder, *words)
    asked = item.input.removeprefix("Write a summary of the dialogue. Take Dialogue ").removesuffix(" only.")
    row = next(row for row in map(PUBLISHED_ROWS["samsum"], range(60)) if row["summary"] in item.answers)
    assert f"[Dialogue {asked}]\n{row['dialogue']}" in item.recipient_prompt.replace("\n\n[", "\n[")


def test_a_long_row_is_cut_around_its_answer(sembench: Command, tmp_path: Path) -> None:
    row = PUBLISHED_ROWS["longbench"](3) | {"answers": ["Captain Holt"], "input": "Who was it?"}
    row["context"] = f"{prose('a', 1, 200)} The master was Captain Holt. {prose('b', 2, 200)}"
    (tmp_path / "rows" / "longbench").mkdir(parents=True)
    (tmp_path / "rows" / "longbench" / "qasper.jsonl").write_text(json.dumps(row) + "\n")
    words = ("--length-bands", "1k", "--transforms", "instruction_variant")
    (item,) = build(sembench, tmp_path / "rows", *words)
    assert item.metadata["answer_in_evidence"]
    assert item.metadata["estimated_tokens"] < 1_200


def test_documents_of_one_length_share_no_row(sembench: Command, folder: Path) -> None:
    words = ("--datasets", "xsum", "--length-bands", "1k", "--sources-per-band", "2", "--transforms", "fuzzy_edit")
    first, second = build(sembench, folder, *words)
    assert not set(first.metadata["rows"]) & set(second.metadata["rows"])


def test_too_few_rows_are_told(sembench: Command, folder: Path, tmp_path: Path) -> None:
    words = ("--datasets", "xsum", "--length-bands", "4k", "--sources-per-band", "5", "-o", tmp_path / "m.jsonl")
    done = sembench("build", "--profile", "published-v1", "--source", folder, *words)
    assert "xsum: text for 1 documents of 4,000 tokens only" in done.output


def test_a_conversation_ends_with_the_users_last_message(sembench: Command, folder: Path) -> None:
    words = ("--datasets", "allenai/WildChat-1M", "--length-bands", "400", "--transforms", "instruction_variant")
    (item,) = build(sembench, folder, *words)
    assert item.input.startswith("Reply to the user's next message: And which hall comes next?")
    assert item.answers == ("Hall 1.",)
    assert "Assistant: Hall 0 it is." in item.recipient_prompt


@pytest.mark.parametrize("field", [{"toxic": True}, {"language": "Chinese"}])
def test_conversations_that_are_toxic_or_not_english_are_left_out(field: dict[str, Any]) -> None:
    dataset = find_dataset("wildchat")
    assert dataset.source(PUBLISHED_ROWS["wildchat"](0), "here") is not None
    assert dataset.source(PUBLISHED_ROWS["wildchat"](0) | field, "here") is None


def test_a_donor_of_a_control_is_of_another_domain_and_about_as_long(sembench: Command, folder: Path) -> None:
    for item in build(sembench, folder, "--length-bands", "1k", "--transforms", "negative_control"):
        donor = item.donor_prompts[0].metadata
        assert donor["domain"] != item.metadata["domain"]
        assert donor["estimated_tokens"] > 700


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("abisee/cnn_dailymail", "cnn_dailymail"),
        ("EdinburghNLP/xsum", "xsum"),
        ("Samsung/samsum", "samsum"),
        ("alexfabbri/multi_news", "multi_news"),
        ("THUDM/LongBench", "longbench"),
        ("WikiHow", "wikihow"),
        ("WildChat-1M", "wildchat"),
    ],
)
def test_a_dataset_is_found_by_its_name_on_the_hub(name: str, found: str) -> None:
    assert find_dataset(name).name == found


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--datasets", "nothing"), "'nothing' is none of cnn_dailymail (abisee/cnn_dailymail)"),
        (("--datasets", "wikihow"), "has to be downloaded by hand"),
    ],
)
def test_what_the_hub_does_not_have_is_said(
    sembench: Command, tmp_path: Path, words: tuple[str, ...], complaint: str
) -> None:
    done = sembench("build", "--profile", "published-v1", *words, "-o", tmp_path / "m.jsonl")
    assert done.exit_code == 2
    assert complaint in done.stderr


def test_a_row_without_a_published_field_is_named(sembench: Command, tmp_path: Path) -> None:
    rows = [PUBLISHED_ROWS["xsum"](0), {"document": "A text."}]
    (tmp_path / "xsum.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = sembench("build", "--profile", "published-v1", "--source", tmp_path, "-o", tmp_path / "m")
    assert done.exit_code == 2
    assert "xsum.jsonl:2: summary: Field required" in done.stderr


def test_a_folder_of_texts_is_cut_into_documents_of_the_length(sembench: Command, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(3):
        (texts / f"{number}.txt").write_text("\n\n".join(prose(f"text{number}x{n}", n, 4) for n in range(12)))
    words = ("--length-bands", "700", "--sources-per-band", "2", "--transforms", "instruction_variant")
    items = build(sembench, texts, *words)
    assert [item.dataset for item in items] == ["texts", "texts"]
    assert all(600 < item.metadata["estimated_tokens"] < 850 for item in items)
    assert all("____" in item.input for item in items)
