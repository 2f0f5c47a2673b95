"""Real documents: meetings, papers and articles from a folder, or the standard library's own text."""

from __future__ import annotations

import json
from pathlib import Path


def load_documents(folder: Path | None) -> list[str]:
    """Long documents, one string each, in a fixed order."""
    if folder is None:
        return _standard_library()
    documents = [*_meetings(folder), *_papers(folder), *_articles(folder)]
    if not documents:
        raise SystemExit(f"--data {folder}: found no *.jsonl meetings, *.rst or *.txt papers, or SQuAD *.json articles")
    return documents


def _meetings(folder: Path) -> list[str]:
    meetings = []
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            turns = json.loads(line).get("meeting_transcripts", [])
            meetings.append("\n".join(f"{turn['speaker']}: {turn['content']}" for turn in turns))
    return [meeting for meeting in meetings if meeting]


def _papers(folder: Path) -> list[str]:
    return [file.read_text() for file in sorted([*folder.rglob("*.rst"), *folder.rglob("*.txt")])]


def _articles(folder: Path) -> list[str]:
    articles = []
    for file in sorted(folder.glob("*.json")):
        for article in json.loads(file.read_text()).get("data", []):
            articles.append("\n\n".join(paragraph["context"] for paragraph in article["paragraphs"]))
    return articles


def _standard_library() -> list[str]:
    """Python's reference topics and largest modules: real text that every machine has."""
    sources = Path(json.__file__).resolve().parents[1]
    files = sorted(sources.glob("*.py"), key=lambda file: (-file.stat().st_size, file.name))[:80]
    return [file.read_text(errors="replace") for file in files]
