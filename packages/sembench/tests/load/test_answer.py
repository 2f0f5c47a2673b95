from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.load.answer import Answer, AnswerReader


def events(*documents: Any) -> bytes:
    return b"".join(
        b"data: " + (document if isinstance(document, bytes) else json.dumps(document).encode()) + b"\n\n"
        for document in documents
    )


def read(body: bytes, *, status: int = 200) -> Answer:
    answer = Answer(due=0.0, sent=0.0)
    reader = AnswerReader(answer)
    reader.take(status, body, 1.0)
    reader.end(status, 2.0)
    return answer


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, **more}]}


@given(st.lists(st.integers(0, 400), max_size=10))
def test_tokens_are_counted_however_the_stream_was_cut(cuts: list[int]) -> None:
    body = events(said("a"), said("b\nc"), said(""), said("d"), b"[DONE]")
    answer = Answer(due=0.0)
    reader = AnswerReader(answer)
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for n in range(len(places) - 1):
        reader.take(200, body[places[n] : places[n + 1]], float(n))
    reader.end(200, 99.0)
    assert answer.error is None
    assert len(answer.token_at) == 3
    assert json.loads(answer.first_event)["choices"][0]["text"] == "a"


def test_a_chunk_that_only_names_the_role_is_no_token() -> None:
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    text = {"choices": [{"delta": {"content": "hi"}}]}
    answer = Answer(due=0.0)
    reader = AnswerReader(answer)
    reader.take(200, events(role), 1.0)
    assert len(answer.token_at) == 0
    reader.take(200, events(text), 2.0)
    assert list(answer.token_at) == [2.0]


def test_a_model_that_thinks_aloud_has_begun_to_answer() -> None:
    assert len(read(events({"choices": [{"delta": {"reasoning_content": "hm"}}]}, b"[DONE]")).token_at) == 1


def test_the_servers_own_counts_are_taken() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    answer = read(events(said("a"), {"choices": [], "usage": usage}, b"[DONE]"))
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (7, 2, 3)


def test_what_the_server_does_not_count_is_not_zero() -> None:
    answer = read(events(said("a"), {"choices": [], "usage": {"prompt_tokens": "many"}}, b"[DONE]"))
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (None, None, None)


def test_an_answer_that_gives_its_reason_to_finish_is_complete() -> None:
    assert read(events(said("a"), said("", finish_reason="length"))).error is None


def test_an_answer_without_text_is_an_answer_without_a_first_token() -> None:
    answer = read(events(said("", finish_reason="stop"), b"[DONE]"))
    assert answer.error is None
    assert len(answer.token_at) == 0


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (events(said("a")), 200, "disconnected"),
        (b"", 200, "disconnected"),
        (events(b"{not json"), 200, "malformed"),
        (events([1, 2]), 200, "malformed"),
        (events(b"[" * 100_000), 200, "malformed"),
        (events({"choices": "x"}), 200, "malformed"),
        (events({"error": {"message": "out of memory"}}), 200, "error_event"),
        (events(said("a", finish_reason="abort"), b"[DONE]"), 200, "error_event"),
        (events({"object": "error", "message": "out of memory"}, b"[DONE]"), 200, "error_event"),
        (events({"text": "NETWORK ERROR", "error_code": 50004}, b"[DONE]"), 200, "error_event"),
        (events({"detail": "Internal Server Error"}, b"[DONE]"), 200, "error_event"),
        (b"event: error\n" + events({"message": "overloaded"}, b"[DONE]"), 200, "error_event"),
        (b'{"error": "busy"}', 503, "http_503"),
    ],
)
def test_every_failure_has_its_kind(body: bytes, status: int, kind: str) -> None:
    assert read(body, status=status).error == kind


def test_the_first_failure_is_the_one_that_is_told() -> None:
    answer = read(events({"error": {"message": "out of memory"}}) + events(b"{not json"))
    assert answer.error == "error_event"
    assert "out of memory" in answer.detail
