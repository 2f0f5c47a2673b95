"""Answer scores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.schema import Quality
from sembench.scoring import exact_match, longest_common_subsequence, rouge_l, score, token_f1, token_recall

words = st.lists(st.sampled_from("abcd"), max_size=14)


@pytest.mark.parametrize(
    ("text", "answer", "figures"),
    [
        # exact match, F1, ROUGE-L, token recall
        ("The Eiffel Tower.", "eiffel tower", (1, 1, 1, 1)),
        ("It is the Eiffel Tower", "Eiffel Tower", (0, 2 * 2 / 6, 2 * 2 / 6, 1)),
        ("tower eiffel", "eiffel tower", (0, 1, 0.5, 1)),
        ("paid paid paid", "paid", (0, 0.5, 0.5, 1)),
        ("paid", "paid paid", (0, 2 / 3, 2 / 3, 0.5)),
        ("nothing in common", "eiffel tower", (0, 0, 0, 0)),
        ("", "eiffel tower", (0, 0, 0, 0)),
        ("", "", (1, 1, 1, 1)),
        ("words", "...", (0, 0, 0, 0)),
        ("$1,200.50 in total", "1200.50", (0, 2 / 7, 2 / 7, 0.5)),
        ("北京大学", "北京", (0, 4 / 6, 4 / 6, 1)),
    ],
)
def test_figures_worked_out_by_hand(text: str, answer: str, figures: tuple[float, ...]) -> None:
    scored = tuple(measure(text, [answer]) for measure in (exact_match, token_f1, rouge_l, token_recall))
    assert scored == pytest.approx(figures)


def test_a_choice_among_letters_is_no_article() -> None:
    assert exact_match("A", ["A"]) == 1
    assert token_recall("The answer is A.", ["A"]) == 1
    assert token_recall("It is a dog.", ["A"]) == 0
    assert token_recall("the answer is b", ["B"]) == 0


def test_an_answer_of_articles_only_keeps_them() -> None:
    assert exact_match("the", ["The"]) == 1
    assert token_f1("the disk", ["the"]) == pytest.approx(2 / 3)


def test_the_best_answer_counts() -> None:
    assert exact_match("Paris", ["Lyon", "Paris"]) == 1
    assert token_f1("Paris", ["Lyon", "Paris France"]) == pytest.approx(2 / 3)


def test_the_verdict_is_the_best_of_three_against_the_threshold() -> None:
    passed = score("It was the red door on the left", ["red door"])
    assert passed.passed is True
    assert passed.token_recall == 1
    assert passed.f1 is not None
    assert passed.f1 < 0.6
    assert score("red", ["red door"], threshold=0.7).passed is False
    assert score("red", ["red door"], threshold=0.6).passed is True


def test_without_answers_nothing_is_scored() -> None:
    assert score("anything", []) == Quality()
    with pytest.raises(ValueError, match="no accepted answers"):
        exact_match("anything", [])


@given(words, words)
def test_the_common_subsequence_is_that_of_the_table(first: list[str], second: list[str]) -> None:
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for row, one in enumerate(first):
        for column, other in enumerate(second):
            longer = max(table[row][column + 1], table[row + 1][column])
            table[row + 1][column + 1] = table[row][column] + 1 if one == other else longer
    assert longest_common_subsequence(first, second) == table[-1][-1]


@given(st.text(max_size=40), st.lists(st.text(max_size=40), min_size=1, max_size=3))
def test_scores_are_shares_and_a_text_agrees_with_itself(text: str, answers: list[str]) -> None:
    scored = score(text, [*answers, text])
    assert (scored.exact_match, scored.f1, scored.rouge_l) == (1, 1, 1)
    assert scored.passed is True
    for measure in (exact_match, token_f1, rouge_l, token_recall):
        assert 0 <= measure(text, answers) <= 1
