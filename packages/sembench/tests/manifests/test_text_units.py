"""Cutting texts, and finding answers in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sembench.manifests.longbench import paraphrase
from sembench.manifests.text_units import estimate_tokens, find_sentences, holds_answer, split_segments

TEXTS = st.text(alphabet="ab .?!\n,X1", max_size=400)


@given(TEXTS, st.integers(2, 6), st.integers(1, 80))
def test_segments_keep_every_word_in_order_and_respect_both_limits(text: str, most: int, fewest: int) -> None:
    segments = split_segments(text, most, fewest)
    assert " ".join(segments).split() == text.split()
    assert 1 <= len(segments) <= most
    assert len(segments) == 1 or all(len(segment) >= fewest for segment in segments)


@given(TEXTS)
def test_sentences_cover_all_but_whitespace(text: str) -> None:
    spans = find_sentences(text)
    outside = [text[end:start] for (_, end), (start, _) in zip([(0, 0), *spans], [*spans, (len(text), 0)], strict=True)]
    assert not "".join(outside).strip()


def test_paragraphs_are_cut_before_lines_and_lines_before_sentences() -> None:
    assert split_segments("aa\nbb\n\ncc\ndd", 2, 2) == ["aa\nbb", "cc\ndd"]
    assert split_segments("aaa\nbbb", 2, 2) == ["aaa", "bbb"]
    assert split_segments("One one. Two two.", 2, 2) == ["One one.", "Two two."]


def test_an_answer_is_found_across_line_ends_but_not_inside_words() -> None:
    assert holds_answer("paid 4,812.60\n  EUR today", ("4,812.60 EUR",))
    assert holds_answer("The CAPTAIN came", ("captain",))
    assert not holds_answer("The captaincy", ("captain",))
    assert not holds_answer("anything", ())
    assert not holds_answer("Plan B", ("B",))
    assert holds_answer("他住在北京市", ("北京",))


def test_the_estimate_counts_digits_and_marks_one_by_one() -> None:
    assert estimate_tokens("at 14:02") == 6
    assert estimate_tokens("international") == 3
    assert estimate_tokens("") == 0


def test_a_paraphrase_differs_and_keeps_the_subject() -> None:
    for question in (
        "Who wrote the report?",
        "What is the fee?",
        "Summarize the talk.",
        "How many ships sank?",
        "Why?",
    ):
        other = paraphrase(question)
        assert other != question
        assert question.rstrip("?.").split()[-1] in other
