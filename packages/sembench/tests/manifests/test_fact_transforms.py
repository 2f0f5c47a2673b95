"""copy_verbatim, edited_fact and absent_fact: what donor and recipient say, and what passes for an answer."""

from __future__ import annotations

import pytest

from sembench.manifests import build_fixture, build_synthetic
from sembench.manifests.draws import Draws
from sembench.manifests.source import Fact, SourceDocument
from sembench.manifests.text_units import holds_answer
from sembench.manifests.transforms import TRANSFORM_FUNCTIONS, Context, NotPossible
from sembench.schema import FACT_TRANSFORMS, ManifestItem
from sembench.scoring import judge


@pytest.fixture(scope="module")
def items() -> list[ManifestItem]:
    return build_synthetic(seed=7, bands_tokens=(600,), transforms=FACT_TRANSFORMS)


def _of(items: list[ManifestItem], transform: str) -> list[ManifestItem]:
    found = [item for item in items if item.transform == transform]
    assert found
    return found


def _evidence(item: ManifestItem) -> str:
    return "\n".join(item.recipient_prompt[start:end] for start, end in item.metadata["evidence_spans"])


def test_the_sentence_to_copy_stands_in_both_and_only_its_beginning_in_the_question(items: list[ManifestItem]) -> None:
    for item in _of(items, "copy_verbatim"):
        (sentence,) = item.answers
        assert sentence in _evidence(item)
        assert sentence in item.donor_prompts[0].text
        assert sentence not in item.input
        assert " ".join(sentence.split()[:5]) in item.input


def test_a_changed_fact_is_the_donors_in_the_donor_and_the_new_one_in_the_recipient(items: list[ManifestItem]) -> None:
    found = _of(items, "edited_fact")
    assert [item.metadata["asked"] for item in found] == ["directly", "through its consequence"] * (len(found) // 2)
    for item in found[::2]:
        (old,) = item.metadata["donor_answers"]
        assert holds_answer(_evidence(item), item.answers)
        assert not holds_answer(_evidence(item), (old,))
        assert holds_answer(item.donor_prompts[0].text, (old,))
        assert not holds_answer(item.donor_prompts[0].text, item.answers)


def test_through_its_consequence_both_are_asked_the_same_and_answer_differently(items: list[ManifestItem]) -> None:
    for item in _of(items, "edited_fact")[1::2]:
        assert {*item.answers, *item.metadata["donor_answers"]} == {"red", "blue"}
        assert "Filing note" in item.donor_prompts[0].text
        assert item.input in item.donor_prompts[0].text
        assert item.input in item.recipient_prompt


def test_what_is_absent_stood_in_the_donor_and_nowhere_in_the_recipient(items: list[ManifestItem]) -> None:
    for item in _of(items, "absent_fact"):
        gone = tuple(item.metadata["donor_answers"])
        assert holds_answer(item.donor_prompts[0].text, gone)
        assert not holds_answer(item.recipient_prompt, gone)


def test_they_are_built_only_where_asked_for() -> None:
    assert not {item.transform for item in build_fixture()} & set(FACT_TRANSFORMS)


@pytest.mark.parametrize("name", FACT_TRANSFORMS)
def test_a_document_without_what_is_needed_is_left_out_with_the_reason(name: str) -> None:
    source = SourceDocument("d", "d", "s", "note", "Short.", (Fact("?", "?", ("nowhere",)),))
    context = Context(Draws(1), 4, 400, lambda source: source, lambda source, document: True)
    with pytest.raises(NotPossible):
        TRANSFORM_FUNCTIONS[name](source, context)


def test_a_quote_passes_whole_or_not_at_all(items: list[ManifestItem]) -> None:
    item = _of(items, "copy_verbatim")[0]
    assert judge(f'It says: "{item.answers[0]}" That is all.', item).passed
    words = item.answers[0].split()
    assert not judge(" ".join([*words[:-2], "another", "ending"]), item).passed


def test_a_fact_passes_unless_the_outdated_one_is_named_too(items: list[ManifestItem]) -> None:
    item = _of(items, "edited_fact")[0]
    (new,), (old,) = item.answers, item.metadata["donor_answers"]
    assert judge(f"The answer is {new}.", item).passed
    assert not judge(f"The answer is {old}.", item).passed
    assert not judge(f"It is {new}, or {old}.", item).passed


@pytest.mark.parametrize(
    ("text", "passes"), [("Not stated.", True), ("The ticket does not mention it.", True), ("I think so.", False)]
)
def test_what_is_absent_is_to_be_called_so(items: list[ManifestItem], text: str, passes: bool) -> None:
    item = _of(items, "absent_fact")[0]
    assert judge(text, item).passed is passes
    assert not judge(f"Not stated, but I guess {item.metadata['donor_answers'][0]}.", item).passed
