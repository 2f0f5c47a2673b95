"""Prompts become typed blocks by plain rules, and no character is lost on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend_core.prompts import (
    START_WEIGHTS,
    BlockKind,
    BlockType,
    PromptBlock,
    classify_text,
    estimated_tokens,
    segment_messages,
    segment_request,
    segment_text,
)
from semblend_core.prompts.labels import MOST_MARKS
from semblend_core.prompts.segmenting import MOST_PARTS

PASSAGE = " ".join(f"The harbour master of port {n} keeps a ledger of every ship that enters." for n in range(12))
CONTRACT = (
    "WHEREAS the Licensor grants the Licensee the rights set out in Section 4.2, the parties agree as follows. "
    "The Licensee shall indemnify the Licensor against any liability arising from a breach hereof, pursuant to "
    "Section 7, and any dispute shall be settled by arbitration."
)
CODE = "import os\n\n\ndef main() -> None:\n    return os.getcwd()\n\n\nclass Runner:\n    pass\n"


def types(blocks: tuple[PromptBlock, ...]) -> list[str]:
    return [block.type.value for block in blocks]


def test_the_published_request_is_cut_at_its_labels() -> None:
    blocks = segment_messages(
        [
            {"role": "system", "content": "You are a concise assistant."},
            {"role": "user", "content": "CONTEXT: shared document\n\nUSER: summarize it"},
        ]
    )
    assert types(blocks) == ["system", "retrieved_context", "user"]
    assert [block.body.strip() for block in blocks] == [
        "You are a concise assistant.",
        "shared document",
        "summarize it",
    ]
    assert [block.position for block in blocks] == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SYSTEM: be brief\nUSER: hello", ["system", "user"]),
        ("### Context\nsome facts\n### Question\nwhich?", ["retrieved_context", "user"]),
        ("[Document 1]\nfirst\n[Document 2]\nsecond\nQuestion: which?", ["retrieved_context"] * 2 + ["user"]),
        ("Tool output: 42 rows\nAnswer: forty-two\nUser: sure?", ["tool_output", "assistant", "user"]),
        ("<context>some facts</context>\nUSER: which?", ["retrieved_context", "user"]),
        ("Instructions: answer in JSON\nTask: extract names", ["template", "user"]),
        ("Exhibit A: the signed letter\nQuestion: who signed?", ["retrieved_context", "user"]),
        ("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n", ["system", "user"]),
        (
            "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nhello<|eot_id|>",
            ["user", "assistant"],
        ),
        (f"Explain this:\n```python\n{CODE}```\nUSER: why?", ["other", "code", "user"]),
        ("The user: a person. A task: work. Nothing here is labelled.", ["other"]),
    ],
)
def test_raw_prompts_are_cut_at_their_marks(text: str, expected: list[str]) -> None:
    assert types(segment_text(text)) == expected


def test_roles_say_what_a_message_is_where_it_does_not_say_so_itself() -> None:
    roles = ["system", "developer", "user", "assistant", "tool", "function", "someone", None]
    blocks = segment_messages([{"role": role, "content": "some words"} for role in roles])
    assert types(blocks) == [*("system", "system", "user", "assistant", "tool_output", "tool_output", "other", "other")]


@pytest.mark.parametrize(
    ("text", "otherwise", "expected"),
    [
        (CODE, BlockType.USER, (BlockType.CODE, None)),
        (CONTRACT, BlockType.USER, (BlockType.RETRIEVED_CONTEXT, BlockKind.LEGAL_EVIDENCE)),
        (CONTRACT, BlockType.ASSISTANT, (BlockType.ASSISTANT, None)),
        ('{"a": 1, "b": 2, "c": [3]}', BlockType.USER, (BlockType.TOOL_OUTPUT, None)),
        ("Dear {name}, your order {order_id} has left.", BlockType.SYSTEM, (BlockType.TEMPLATE, None)),
        ("How are you?", BlockType.USER, (BlockType.USER, None)),
        ("", BlockType.OTHER, (BlockType.OTHER, None)),
    ],
)
def test_what_shows_itself_is_believed(
    text: str, otherwise: BlockType, expected: tuple[BlockType, BlockKind | None]
) -> None:
    assert classify_text(text, otherwise) == expected


def test_every_legal_term_has_its_stem() -> None:
    """The quick search must not miss what the slower one would find."""
    from semblend_core.prompts.classifying import _LEGAL_STEMS, _LEGAL_WORDS

    terms = [term.replace("\\w+", "x") for term in _LEGAL_WORDS.pattern[len("\\b(?:") :].split("|")]
    assert len(terms) > 20
    assert [term for term in terms if not any(stem in term.lower() for stem in _LEGAL_STEMS)] == []


def test_legal_evidence_is_retrieved_context_of_a_kind() -> None:
    labelled, shown = segment_text(f"EVIDENCE: a letter\nCONTEXT: {CONTRACT}")
    assert (labelled.type, labelled.kind) == (BlockType.RETRIEVED_CONTEXT, BlockKind.LEGAL_EVIDENCE)
    assert (shown.type, shown.kind) == (BlockType.RETRIEVED_CONTEXT, BlockKind.LEGAL_EVIDENCE)
    assert segment_text("CONTEXT: a cookbook")[0].kind is None


@pytest.mark.parametrize(
    "text", [f"{PASSAGE}\n\nWho keeps it?", f"Who keeps it?\n\n{PASSAGE}", f"Read.\n\n{PASSAGE}\n\nWho?"]
)
def test_a_long_passage_beside_a_short_question_is_context(text: str) -> None:
    blocks = segment_messages([{"role": "user", "content": text}])
    assert [block.type for block in blocks if block.body.strip() == PASSAGE] == [BlockType.RETRIEVED_CONTEXT]
    assert {block.type for block in blocks if block.body.strip() != PASSAGE} == {BlockType.USER}


def test_a_document_is_known_again_under_another_number_and_behind_another_instruction() -> None:
    first = segment_text(f"SYSTEM: be brief\nDocument 1: {PASSAGE}\nUSER: who?")
    second = segment_text(f"Task: list the ports\nDocument 7: {PASSAGE}")
    assert first[1].content_hash == second[1].content_hash
    assert len({block.content_hash for block in (*first, *second)}) == 4


def test_tools_parts_and_calls_of_a_chat_request() -> None:
    body = {
        "tools": [{"type": "function", "function": {"name": "weather"}}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is on it?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                ],
            },
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "weather"}}]},
            {"role": "tool", "content": "rain"},
        ],
    }
    blocks = segment_request(body)
    assert types(blocks) == ["template", "user", "other", "assistant", "tool_output"]
    assert "AAAA" not in "".join(block.text for block in blocks)


def test_prompts_of_completions_in_all_their_shapes() -> None:
    assert types(segment_request({"prompt": "USER: hi"})) == ["user"]
    assert types(segment_request({"prompt": ["USER: hi", "CONTEXT: there"]})) == ["user", "retrieved_context"]
    (tokens,) = segment_request({"prompt": [1, 2, 3]})
    assert tokens.tokens == 3
    assert [block.tokens for block in segment_request({"prompt": [[1, 2], [3]]})] == [2, 1]


@pytest.mark.parametrize(
    "body", [{}, {"prompt": None}, {"prompt": []}, {"messages": None}, {"messages": "hi"}, {"messages": [1, None, {}]}]
)
def test_what_is_no_prompt_gives_no_blocks(body: dict[str, object]) -> None:
    assert segment_request(body) == ()


def test_a_counter_of_the_callers_counts_the_tokens() -> None:
    assert [b.tokens for b in segment_text("USER: hi\nCONTEXT: there", count_tokens=len)] == [9, 14]
    assert estimated_tokens("") == 0
    assert estimated_tokens("Hello, world") == 3


def test_every_type_has_a_weight() -> None:
    assert set(START_WEIGHTS) == set(BlockType)


_FRAGMENTS = st.sampled_from(
    [
        *("CONTEXT:", "USER: ", "\n", "\n\n", "```", "```py\n", "<context>", "</context>", "[Document 3]\n", " "),
        *("<|im_start|>user\n", "<|im_end|>", "some words", PASSAGE, CONTRACT, CODE, "### Task\n", "{name} {other}"),
    ]
)


@given(st.lists(st.one_of(_FRAGMENTS, st.text(max_size=20)), max_size=12).map("".join))
def test_no_character_is_lost_or_invented(text: str) -> None:
    blocks = segment_text(text)
    assert "".join(block.text for block in blocks) == (text if text.strip() else "")
    assert all(block.body in block.text and block.body.strip() for block in blocks if block.type is not BlockType.CODE)
    assert [block.position for block in blocks] == list(range(len(blocks)))
    assert segment_text(text) == blocks


@pytest.mark.parametrize("hostile", ["```\n", "<context>", "USER:\n", " \n", "{", "[", "#", "a;", "WHEREAS "])
def test_hostile_prompts_are_cut_in_linear_time(hostile: str) -> None:
    """A hundred thousand characters: anything quadratic would take an hour."""
    text = hostile * (100_000 // len(hostile))
    assert sum(len(block.text) for block in segment_text(text)) in (0, len(text))


@pytest.mark.parametrize("blank", [" ", "\t", "\N{NO-BREAK SPACE}"])
def test_a_word_behind_very_many_blanks_is_cut_in_linear_time(blank: str) -> None:
    text = blank * 1_000_000 + "x"
    assert [block.text for block in segment_text(text)] == [text]


def test_of_very_many_labels_messages_and_parts_the_first_are_looked_at() -> None:
    """The work that a request causes is bounded, whatever it is made of. No character is lost by that."""
    text = "USER: a\n" * 100_000
    blocks = segment_text(text)
    assert len(blocks) == MOST_MARKS
    assert "".join(block.text for block in blocks) == text
    message = {"role": "user", "content": "a"}
    assert len(segment_messages([message] * (MOST_PARTS + 1))) == MOST_PARTS
    assert len(segment_messages([{"role": "user", "content": ["a"] * (MOST_PARTS + 1)}])) == MOST_PARTS
    assert len(segment_request({"prompt": ["a"] * (MOST_PARTS + 1)})) == MOST_PARTS
