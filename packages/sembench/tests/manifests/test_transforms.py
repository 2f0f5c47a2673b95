"""Each transform: what the recipient shares with its donors, and what not."""

from __future__ import annotations

import re

import pytest

from sembench.manifests.draws import Draws
from sembench.manifests.source import Fact, SourceDocument
from sembench.manifests.transforms import TRANSFORM_FUNCTIONS, Context, Draft, NotPossible
from sembench.manifests.transforms.edits import reflow, revise
from sembench.schema import FACT_TRANSFORMS, PRIVACY_TRANSFORMS, SIMILARITY_TRANSFORMS, TRANSFORMS, ManifestItem


def _of(items: list[ManifestItem], transform: str) -> list[ManifestItem]:
    found = [item for item in items if item.transform == transform]
    assert found
    return found


def _evidence(text: str, metadata: dict[str, list[list[int]]]) -> list[str]:
    return [text[start:end] for start, end in metadata["evidence_spans"]]


def _recipient(item: ManifestItem) -> list[str]:
    return _evidence(item.recipient_prompt, item.metadata)


def _donor(item: ManifestItem, number: int = 0) -> list[str]:
    return _evidence(item.donor_prompts[number].text, item.donor_prompts[number].metadata)


def test_all_published_transforms_exist_in_their_order() -> None:
    extra = (*PRIVACY_TRANSFORMS, *FACT_TRANSFORMS, *SIMILARITY_TRANSFORMS)
    assert tuple(TRANSFORM_FUNCTIONS) == (*TRANSFORMS, *extra)


def test_exact_repeat_is_the_donor_byte_for_byte(synthetic_items: list[ManifestItem]) -> None:
    for item in _of(synthetic_items, "exact_repeat"):
        assert item.recipient_prompt == item.donor_prompts[0].text


def test_instruction_variant_changes_everything_but_the_document_and_question(
    synthetic_items: list[ManifestItem],
) -> None:
    for item in _of(synthetic_items, "instruction_variant"):
        donor = item.donor_prompts[0].text
        assert _recipient(item) == _donor(item)
        assert item.input in donor
        assert item.recipient_prompt[:40] != donor[:40]


@pytest.mark.parametrize("transform", ["same_evidence_new_task", "leading_evidence_new_task"])
def test_a_new_task_asks_another_question_of_the_same_document(
    synthetic_items: list[ManifestItem], transform: str
) -> None:
    for item in _of(synthetic_items, transform):
        assert _recipient(item) == _donor(item)
        assert item.input not in item.donor_prompts[0].text


def test_the_task_stands_before_the_document_or_after_it(synthetic_items: list[ManifestItem]) -> None:
    for item in _of(synthetic_items, "same_evidence_new_task"):
        assert item.recipient_prompt.index(item.input) < item.metadata["evidence_spans"][0][0]
    for item in _of(synthetic_items, "leading_evidence_new_task"):
        assert item.metadata["evidence_spans"][0][0] == 0
        assert item.recipient_prompt.index(item.input) > item.metadata["evidence_spans"][0][1]


def test_rag_reorder_moves_every_segment_and_renames_the_records(synthetic_items: list[ManifestItem]) -> None:
    for item in _of(synthetic_items, "rag_reorder"):
        before, after = _donor(item), _recipient(item)
        assert sorted(before) == sorted(after)
        assert len(before) >= 2
        assert all(old != new for old, new in zip(before, after, strict=True))
        assert [before[place] for place in item.metadata["segment_order"]] == after
        assert "[Record 1]" in item.donor_prompts[0].text
        assert "[Record 1]" not in item.recipient_prompt


def test_multi_donor_composite_has_one_donor_per_segment(synthetic_items: list[ManifestItem]) -> None:
    for item in _of(synthetic_items, "multi_donor_composite"):
        segments = _recipient(item)
        assert len(item.donor_prompts) == len(segments) >= 2
        assert [_donor(item, number) for number in range(len(segments))] == [[segment] for segment in segments]


def test_fuzzy_edit_changes_whitespace_only_and_adds_a_line(synthetic_items: list[ManifestItem]) -> None:
    for item in _of(synthetic_items, "fuzzy_edit"):
        (before,), (after,) = _donor(item), _recipient(item)
        assert before != after
        assert before.split() == after.split()
        assert 1 <= item.metadata["reflowed_paragraphs"] < item.metadata["paragraphs"]
        start = item.metadata["evidence_spans"][0][0]
        assert re.search(r"Retrieved from mirror \d+ \| revision \d+\n$", item.recipient_prompt[:start])


def test_reflow_wraps_long_lines_sets_in_short_ones_and_leaves_two_paragraphs_of_three_alone() -> None:
    document = "\n\n".join(f"short {n}\n" + f"word{n} " * 30 for n in range(9))
    after, changed, paragraphs = reflow(document, Draws(3))
    assert (changed, paragraphs) == (3, 9)
    assert after.count("  short") == 3
    assert sum(len(line) > 84 for line in after.splitlines()) == 6
    assert after.split() == document.split()


def test_a_text_without_paragraphs_is_reflowed_by_lines() -> None:
    after, changed, lines = reflow("\n".join("speaker says " * 20 for _ in range(12)), Draws(1))
    assert (changed, lines) == (4, 12)
    assert after.split() == ["speaker", "says"] * 240


def test_sparse_edit_revises_about_four_percent_in_place(synthetic_items: list[ManifestItem]) -> None:
    for item in _of(synthetic_items, "sparse_edit"):
        revised, sentences = item.metadata["revised_sentences"], item.metadata["sentences"]
        assert revised == max(1, round(sentences * 0.04))
        (before,), (after,) = _donor(item), _recipient(item)
        changed = [(old, new) for old, new in zip(before.splitlines(), after.splitlines(), strict=True) if old != new]
        assert 1 <= len(changed) <= revised


def test_a_revision_leaves_sentences_with_the_answer_alone() -> None:
    document = "The fee is 4711 crowns. " + " ".join(f"Berth {n} held {n * 37} crates." for n in range(11, 60))
    for seed in range(20):
        after, revised, sentences = revise(document, ("4711 crowns",), Draws(seed))
        assert "The fee is 4711 crowns." in after
        assert (revised, sentences) == (2, 50)
        assert after != document


def test_repeat_shifted_has_the_same_prompt_behind_another_wrapper(synthetic_items: list[ManifestItem]) -> None:
    for item in _of(synthetic_items, "repeat_shifted"):
        donor, recipient = item.donor_prompts[0].text, item.recipient_prompt
        assert donor.partition("\n\n")[2] == recipient.partition("\n\n")[2]
        assert donor[:20] != recipient[:20]
    shifts = {
        len(item.recipient_prompt) - len(item.donor_prompts[0].text) for item in _of(synthetic_items, "repeat_shifted")
    }
    assert len(shifts) > 3
    assert min(shifts) > 0


def test_question_paraphrase_asks_the_same_in_other_words(synthetic_items: list[ManifestItem]) -> None:
    for item in _of(synthetic_items, "question_paraphrase"):
        assert _recipient(item) == _donor(item)
        assert item.input not in item.donor_prompts[0].text
        assert item.recipient_prompt.endswith(f"Question: {item.input}\nAnswer:")


def test_multi_turn_grows_by_a_turn_with_and_without_trimming(synthetic_items: list[ManifestItem]) -> None:
    items = _of(synthetic_items, "multi_turn")
    assert sum(item.metadata["history_trimmed"] for item in items) == len(items) / 2
    for item in items:
        donor = item.donor_prompts[0].text
        assert donor.endswith("Assistant:")
        assert item.answers[0] not in re.findall(r"^Assistant: (.+)$", item.recipient_prompt, re.MULTILINE)
        if item.metadata["history_trimmed"]:
            assert not item.recipient_prompt.startswith(donor)
            assert _recipient(item)[:-1] == _donor(item)[1:]
        else:
            assert item.recipient_prompt.startswith(donor)
            assert len(_recipient(item)) == len(_donor(item)) + 1


def test_an_entity_swap_reads_alike_and_states_other_facts(synthetic_items: list[ManifestItem]) -> None:
    for item in _of(synthetic_items, "entity_swap_control"):
        donor = item.donor_prompts[0].text
        assert item.negative_control is False
        (wrong,) = item.metadata["donor_answers"]
        assert item.answers[0] not in donor
        assert wrong in donor
        assert wrong not in item.recipient_prompt
        (before,), (after,) = _donor(item), _recipient(item)
        assert abs(len(before.splitlines()) - len(after.splitlines())) == 0


def test_a_negative_control_takes_its_donor_from_another_domain(synthetic_items: list[ManifestItem]) -> None:
    recipients = {item.source_id for item in synthetic_items}
    for item in _of(synthetic_items, "negative_control"):
        assert item.negative_control
        metadata = item.donor_prompts[0].metadata
        assert metadata["domain"] != item.metadata["domain"]
        assert metadata["source_id"] not in recipients
        assert item.answers[0] not in item.donor_prompts[0].text
    assert not any(item.negative_control for item in synthetic_items if item.transform != "negative_control")


def _short() -> tuple[SourceDocument, Context]:
    fact = Fact("How many?", "What number?", ("forty two",))
    source = SourceDocument("d", "d", "s", "note", "it says forty two and no more", (fact,))
    return source, Context(Draws(1), 4, 400, lambda source: source, lambda source, document: True)


@pytest.mark.parametrize("transform", ["rag_reorder", "multi_donor_composite", "multi_turn"])
def test_a_document_too_short_to_cut_is_left_out_with_the_reason(transform: str) -> None:
    with pytest.raises(NotPossible, match=r"has 1 .*--min-segment-chars 400"):
        TRANSFORM_FUNCTIONS[transform](*_short())


def test_a_text_without_names_and_figures_cannot_be_swapped() -> None:
    with pytest.raises(NotPossible, match="no names or figures"):
        TRANSFORM_FUNCTIONS["entity_swap_control"](*_short())


def test_a_single_question_source_gives_its_donor_a_summary_to_write() -> None:
    (draft,) = TRANSFORM_FUNCTIONS["same_evidence_new_task"](*_short())
    assert isinstance(draft, Draft)
    assert "Sum up the note" in draft.donors[0].prompt.text
    assert draft.question == "How many?"
