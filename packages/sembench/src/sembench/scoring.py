"""How good an answer is: exact match, F1, ROUGE-L and token recall against the accepted answers.

All four compare words: lower case, without punctuation and without English articles. Two exceptions keep short answers
alive: an answer made of articles only keeps them, and one that is a single capital letter (a choice among A to D) is
compared as it stands, so that the word "a" does not pass for choice A.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from sembench.schema import ManifestItem, Quality

PASS_THRESHOLD = 0.60
"""What the best of F1, ROUGE-L and token recall must reach for an answer to pass."""

_ARTICLES = frozenset({"a", "an", "the"})
# Chinese and Japanese are written without spaces: each of their characters counts as a word.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"
)
_CHOICE = re.compile(r"[A-Z]")


def exact_match(text: str, answers: Sequence[str]) -> float:
    """1.0 where the text has the words of an answer, in order and no others; else 0.0."""
    return _best(lambda said, wanted: float(said == wanted), text, answers)


def token_f1(text: str, answers: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over the words, each as often as it occurs."""
    return _best(_f1, text, answers)


def rouge_l(text: str, answers: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over the longest common subsequence of words."""
    return _best(_rouge_l, text, answers)


def token_recall(text: str, answers: Sequence[str]) -> float:
    """Share of the answer's words that the text holds; what else it says costs nothing."""
    return _best(_recall, text, answers)


def score(text: str, answers: Sequence[str], threshold: float = PASS_THRESHOLD) -> Quality:
    """All four and the verdict. Without accepted answers nothing is scored and every figure stays None."""
    if not answers:
        return Quality()
    f1, rouge, recall = token_f1(text, answers), rouge_l(text, answers), token_recall(text, answers)
    return Quality(
        exact_match=exact_match(text, answers),
        f1=f1,
        rouge_l=rouge,
        token_recall=recall,
        passed=max(f1, rouge, recall) >= threshold,
    )


def judge(text: str, item: ManifestItem, threshold: float = PASS_THRESHOLD) -> Quality:
    """``score``, and where the item names a judge, its verdict instead of the threshold's."""
    quality = score(text, item.answers, threshold)
    verdict = _JUDGES.get(str(item.metadata.get("judge")))
    if verdict is None or not item.answers:
        return quality
    outdated = [str(answer) for answer in item.metadata.get("donor_answers", ())]
    return quality.model_copy(update={"passed": verdict(text, item.answers, outdated)})


def _says(text: str, phrases: Sequence[str]) -> bool:
    """Whether one of the phrases stands in the text, its words in a row."""
    said = f" {' '.join(_WORD.findall(text.lower()))} "
    return any(f" {' '.join(_WORD.findall(phrase.lower()))} " in said for phrase in phrases)


_ABSENT = (
    *("not stated", "not mentioned", "not specified", "not provided", "not given", "does not say", "does not state"),
    *("does not mention", "does not specify", "does not provide", "no information", "no mention", "unknown"),
)
_JUDGES: dict[str, Callable[[str, Sequence[str], Sequence[str]], bool]] = {
    "quote": lambda text, answers, outdated: _says(text, answers),
    "fact": lambda text, answers, outdated: _says(text, answers) and not _says(text, outdated),
    "absent": lambda text, answers, outdated: _says(text, (*answers, *_ABSENT)) and not _says(text, outdated),
}
"""An answer passes when it holds the quote; the fact and not the donor's; the word that there is none."""


def _best(measure: Callable[[list[str], list[str]], float], text: str, answers: Sequence[str]) -> float:
    if not answers:
        raise ValueError("no accepted answers: nothing can be scored against them")
    return max(measure(*_compared_words(text, answer)) for answer in answers)


def _compared_words(text: str, answer: str) -> tuple[list[str], list[str]]:
    """The words of both, normalised in the one way that leaves something of the answer."""
    if _CHOICE.fullmatch(answer.strip()):
        return _WORD.findall(text), [answer.strip()]
    said, wanted = _WORD.findall(text.lower()), _WORD.findall(answer.lower())
    if set(wanted) <= _ARTICLES:
        return said, wanted
    return [word for word in said if word not in _ARTICLES], [word for word in wanted if word not in _ARTICLES]


def _f1(said: list[str], wanted: list[str]) -> float:
    if not said and not wanted:
        return 1.0
    return 2 * _shared(said, wanted) / (len(said) + len(wanted))


def _recall(said: list[str], wanted: list[str]) -> float:
    if not wanted:
        return float(not said)
    return _shared(said, wanted) / len(wanted)


def _rouge_l(said: list[str], wanted: list[str]) -> float:
    if not said and not wanted:
        return 1.0
    return 2 * longest_common_subsequence(said, wanted) / (len(said) + len(wanted))


def _shared(said: list[str], wanted: list[str]) -> int:
    return (Counter(said) & Counter(wanted)).total()


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Its length. One bit per word of ``first``: a row of the usual table is one integer, so long texts stay cheap.

    A bit is cleared where the table's row steps up; adding the matches lets each step move to its earliest match.
    """
    places: dict[str, int] = {}
    for position, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << position
    every = (1 << len(first)) - 1
    row = every
    for word in second:
        matches = row & places.get(word, 0)
        row = ((row + matches) | (row - matches)) & every
    return len(first) - row.bit_count()
