"""private_preamble and planted_context: what the donor says in front, the recipient never names."""

from __future__ import annotations

import pytest

from sembench.manifests import build_fixture, build_synthetic
from sembench.manifests.draws import Draws
from sembench.manifests.source import Fact, SourceDocument
from sembench.manifests.transforms import TRANSFORM_FUNCTIONS, Context, NotPossible
from sembench.privacy.trials import group_trials
from sembench.schema import PRIVACY_TRANSFORMS, InputError, ManifestItem


@pytest.fixture(scope="module")
def items() -> list[ManifestItem]:
    return build_synthetic(seed=7, bands_tokens=(280,), transforms=PRIVACY_TRANSFORMS)


def test_each_document_gives_twelve_donors_and_one_recipient(items: list[ManifestItem]) -> None:
    questions = group_trials(items)
    assert len(questions) == 2 * 3
    for question in questions:
        assert [trial.told for trial in question.trials] == list(range(12))


def test_the_recipient_names_no_candidate_and_shares_the_document(items: list[ManifestItem]) -> None:
    for question in group_trials(items):
        assert not [word for word in question.candidates if word.strip() in question.prompt]
        assert {trial.document for trial in question.trials} == {question.trials[0].document}
        assert question.trials[0].document in question.prompt


def test_a_donor_differs_from_the_next_in_the_candidate_alone(items: list[ManifestItem]) -> None:
    for question in group_trials(items):
        texts = {trial.donor.replace(question.candidates[trial.told].strip(), "...") for trial in question.trials}
        assert len(texts) == 1
        assert all(trial.donor.endswith("in three sentences.") for trial in question.trials)


def test_they_are_built_only_where_asked_for() -> None:
    assert not {item.transform for item in build_fixture()} & set(PRIVACY_TRANSFORMS)


def test_a_document_that_names_a_candidate_is_left_out_with_the_reason() -> None:
    source = SourceDocument("d", "d", "s", "note", "He went to Paris for his asthma.", (Fact("?", "?", ("x",)),))
    context = Context(Draws(1), 4, 400, lambda source: source, lambda source, document: True)
    for name in PRIVACY_TRANSFORMS:
        with pytest.raises(NotPossible, match="names a candidate"):
            TRANSFORM_FUNCTIONS[name](source, context)


def test_a_manifest_without_them_is_refused_with_the_command() -> None:
    with pytest.raises(InputError, match="build --transforms private_preamble"):
        group_trials(build_fixture())
