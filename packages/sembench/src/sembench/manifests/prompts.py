"""Prompts, put together from frames (what the builder says) and evidence (what a source says)."""

from __future__ import annotations

from dataclasses import dataclass

from sembench.manifests.source import SourceDocument

INSTRUCTION = "Read the {noun} and answer the question that follows it. Use its exact words and add nothing."
OTHER_INSTRUCTION = (
    "# Assistant profile: evidence desk\n"
    "You work for a team that checks claims against documents. A colleague has sent you a {noun} and one request. "
    "Reply in as few words as the {noun} itself uses for it, and keep figures and names as they are written there."
)
SYSTEM = "System: You help a colleague to go through a {noun} in several parts. Answer briefly, in its own words."
SUMMARY_TASK = "Sum up the {noun} in three sentences."
ACKNOWLEDGE = "Tell me when you have read it."
ACKNOWLEDGED = "I have read it."


@dataclass(frozen=True)
class SourceText:
    """Text of a source inside a prompt."""

    text: str


@dataclass(frozen=True)
class Prompt:
    text: str
    evidence: tuple[tuple[int, int], ...]
    """Where the text of sources stands, in characters."""

    @property
    def evidence_text(self) -> str:
        return "\n".join(self.text[start:end] for start, end in self.evidence)


def join_prompt(*parts: str | SourceText) -> Prompt:
    texts: list[str] = []
    spans: list[tuple[int, int]] = []
    length = 0
    for part in parts:
        text = part.text if isinstance(part, SourceText) else part
        if isinstance(part, SourceText):
            spans.append((length, length + len(text)))
        texts.append(text)
        length += len(text)
    return Prompt("".join(texts), tuple(spans))


def followed_by(first: str, rest: Prompt) -> Prompt:
    """The same prompt behind another text."""
    moved = tuple((start + len(first), end + len(first)) for start, end in rest.evidence)
    return Prompt(first + rest.text, moved)


def question_last(source: SourceDocument, document: str, question: str, instruction: str = INSTRUCTION) -> Prompt:
    """The usual layout: instruction, document, question."""
    head = instruction.format(noun=source.noun)
    return join_prompt(f"{head}\n\nThe {source.noun}:\n", SourceText(document), f"\n\nQuestion: {question}\nAnswer:")


def other_wording(source: SourceDocument, document: str, question: str) -> Prompt:
    """Another header and another wording of the task around the same document."""
    head = OTHER_INSTRUCTION.format(noun=source.noun)
    return join_prompt(
        f"{head}\n\n<attachment>\n", SourceText(document), f"\n</attachment>\n\nRequest: {question}\nReply:"
    )


def task_first(source: SourceDocument, document: str, question: str) -> Prompt:
    return join_prompt(
        f"Task: {question}\nWork only from the {source.noun} below, and answer in its own words.\n\n",
        SourceText(document),
        "\n\nAnswer:",
    )


def document_first(source: SourceDocument, document: str, question: str) -> Prompt:
    task = f"Above is a {source.noun}. Answer in its own words.\nQuestion: {question}\nAnswer:"
    return join_prompt(SourceText(document), f"\n\n{task}")


def records_prompt(
    source: SourceDocument, segments: list[tuple[str, str]], question: str, instruction: str = INSTRUCTION
) -> Prompt:
    """Segments as retrieved records, each behind its header."""
    parts: list[str | SourceText] = [instruction.format(noun=source.noun)]
    for header, segment in segments:
        parts += [f"\n\n{header}\n", SourceText(segment)]
    return join_prompt(*parts, f"\n\nQuestion: {question}\nAnswer:")


def summary_task(source: SourceDocument) -> str:
    return SUMMARY_TASK.format(noun=source.noun)
