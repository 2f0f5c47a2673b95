"""fixture and synthetic-v1: what they hold, and that the same seed gives the same bytes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from itertools import combinations

import pytest

from sembench.manifests import BUILDER_VERSION, build_synthetic, format_item
from sembench.manifests.domains import DOMAINS
from sembench.manifests.synthetic import RUN, Runs, SyntheticWriter
from sembench.manifests.text_units import split_pieces
from sembench.schema import TRANSFORMS, InputError, ManifestItem

FIXTURE_SHA256 = "2158e0cf2f98185688286f1c132095f3c88829da4647fb8abe396b068fe706ae"
"""Of builder version 1. Where it changes, ``BUILDER_VERSION`` must change with it."""


def test_the_fixture_has_every_transform_in_a_dozen_or_so_items(fixture_items: list[ManifestItem]) -> None:
    assert {item.transform for item in fixture_items} == set(TRANSFORMS)
    assert len(fixture_items) == 14
    assert all(300 <= item.metadata["estimated_tokens"] <= 2_048 for item in fixture_items)
    assert {item.dataset for item in fixture_items} == set(DOMAINS)


def test_the_fixture_has_the_bytes_of_its_builder_version(fixture_items: list[ManifestItem]) -> None:
    data = "".join(format_item(item) + "\n" for item in fixture_items).encode()
    assert BUILDER_VERSION == "1"
    assert hashlib.sha256(data).hexdigest() == FIXTURE_SHA256


def test_same_seed_same_bytes_in_processes_that_hash_text_differently() -> None:
    program = (
        "import hashlib; from sembench.manifests import build_synthetic, format_item;"
        "items = build_synthetic(seed=5, bands_tokens=(900,));"
        "print(hashlib.sha256(''.join(map(format_item, items)).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(digests) == 1


def test_another_seed_gives_another_manifest() -> None:
    one, other = (build_synthetic(seed=seed, bands_tokens=(600,), transforms=("exact_repeat",)) for seed in (1, 2))
    assert [item.item_id for item in one] == [item.item_id for item in other]
    assert not {item.recipient_prompt for item in one} & {item.recipient_prompt for item in other}


def test_every_answer_stands_once_in_the_document_and_in_the_recipient(synthetic_items: list[ManifestItem]) -> None:
    for item in synthetic_items:
        assert item.metadata["answer_in_evidence"] is True
        evidence = "\n".join(item.recipient_prompt[a:b] for a, b in item.metadata["evidence_spans"])
        flat = " ".join(evidence.split())
        assert flat.count(item.answers[0]) == 1, item.item_id
        assert item.input in item.recipient_prompt


def test_lengths_follow_the_bands(synthetic_items: list[ManifestItem]) -> None:
    for item in synthetic_items:
        if item.transform == "exact_repeat":
            band = item.metadata["length_band"]
            assert 0.9 * band <= item.metadata["estimated_tokens"] <= 1.05 * band


def test_ids_are_unique_and_say_where_an_item_comes_from(synthetic_items: list[ManifestItem]) -> None:
    ids = [item.item_id for item in synthetic_items]
    ids += [donor.donor_id for item in synthetic_items for donor in item.donor_prompts]
    assert len(set(ids)) == len(ids)
    item = synthetic_items[0]
    text = "\x1f".join((item.dataset, item.source_id, item.transform, "recipient", "0"))
    assert item.item_id == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_no_two_documents_share_a_run_of_pieces() -> None:
    writer = SyntheticWriter(3)
    documents = [
        document
        for number in range(4)
        for domain in DOMAINS.values()
        for source in (writer.write(domain, f"{domain.name}-{number}", 3_000, with_swap=True),)
        for document in ((source.document,), (source.swapped.document,) if source.swapped else ())
        if document
    ]
    runs = [
        {tuple(parts[start : start + RUN]) for start in range(len(parts) - RUN + 1)}
        for (document,) in documents
        for parts in (split_pieces(document),)
    ]
    # A document and its own swap stand next to each other, and only they may share wording.
    related = {(2 * n, 2 * n + 1) for n in range(len(runs) // 2)}
    for (a, first), (b, second) in combinations(enumerate(runs), 2):
        assert (a, b) in related or not first & second


def test_runs_refuse_what_another_source_has_and_allow_what_is_ones_own() -> None:
    runs = Runs()
    text = runs.numbered("one two three four five six seven eight nine ten alpha beta gamma delta")
    found = runs.free(text, owner=0)
    assert found
    runs.take(found, owner=0)
    assert runs.free(text, owner=0) == found
    assert runs.free(text, owner=1) is None


def test_names_vary_within_and_between_domains(synthetic_items: list[ManifestItem]) -> None:
    questions = Counter(item.input for item in synthetic_items if item.transform == "exact_repeat")
    assert max(questions.values()) == 1


@pytest.mark.parametrize("domains", [("support_tickets", "poems"), ("",)])
def test_an_unknown_domain_is_refused_by_name(domains: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="--datasets"):
        build_synthetic(seed=1, domains=domains, bands_tokens=(600,))
