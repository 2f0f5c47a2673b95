"""The audit finds what unrelated sources share, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from sembench.manifests import build_synthetic, write_manifest
from sembench.manifests.audit import Audit, audit_manifest
from sembench.manifests.audited_texts import hash_windows
from sembench.schema import InputError, ManifestItem
from sembench.tokenization import load_tokenizer

Command = Callable[..., Result]
LEAK = "The quick auditor counted nineteen red crates, four ladders, one kettle and no fewer than seven umbrellas."


def _audited(items: list[ManifestItem], block_size: int = 16, share: float = 0.5) -> Audit:
    tokenizer = load_tokenizer(None)
    return audit_manifest(items, tokenizer, block_size, share, manifest="m", manifest_sha256="0")


def _with_leak(item: ManifestItem, into: str) -> ManifestItem:
    """The item with a sentence put before the evidence of its recipient, or of its donor."""
    # A word of its own behind the sentence: what follows it is no part of the leak.
    own = "".join(chr(ord("a") + int(digit, 16)) for digit in item.item_id)
    leak = f"{LEAK} {own}\n"
    if into == "recipient":
        text, metadata = _leaky(item.recipient_prompt, item.metadata, leak)
        return item.model_copy(update={"recipient_prompt": text, "metadata": metadata})
    donor = item.donor_prompts[0]
    text, metadata = _leaky(donor.text, donor.metadata, leak)
    leaky = donor.model_copy(update={"text": text, "metadata": metadata})
    return item.model_copy(update={"donor_prompts": (leaky, *item.donor_prompts[1:])})


def _leaky(text: str, metadata: dict[str, Any], leak: str) -> tuple[str, dict[str, Any]]:
    ((start, end),) = metadata["evidence_spans"]
    spans = [[start, end + len(leak)]]
    return text[:start] + leak + text[start:], {**metadata, "evidence_spans": spans}


@pytest.fixture(scope="module")
def repeats() -> list[ManifestItem]:
    """Six sources, one item each."""
    return build_synthetic(seed=4, bands_tokens=(700,), sources_per_band=2, transforms=("instruction_variant",))


def test_generated_manifests_have_no_violation_in_words(synthetic_items: list[ManifestItem]) -> None:
    audit = _audited(synthetic_items)
    assert audit.violations == 0
    assert audit.collisions == []
    assert audit.boilerplate_in_evidence == 0
    assert audit.boilerplate_outside_evidence > 0
    assert (audit.negative_controls_touched.numerator, audit.negative_controls_touched.denominator) == (0, 12)


def test_generated_manifests_have_no_violation_in_the_tokens_of_a_real_model(
    synthetic_items: list[ManifestItem],
) -> None:
    try:
        tokenizer = load_tokenizer("smollm2")
    except InputError as error:
        pytest.skip(str(error))
    audit = audit_manifest(synthetic_items, tokenizer, 16, 0.5, manifest="m", manifest_sha256="0")
    assert audit.evidence_windows > 50_000
    assert audit.violations == 0


def test_a_sentence_in_a_recipient_and_in_an_unrelated_donor_is_a_violation(repeats: list[ManifestItem]) -> None:
    items = [_with_leak(repeats[0], "recipient"), _with_leak(repeats[1], "donor"), *repeats[2:]]
    audit = _audited(items)
    assert audit.violations >= 1
    (collision,) = audit.collisions
    assert collision.recipient_source.endswith(repeats[0].source_id)
    assert collision.donor_source.endswith(repeats[1].source_id)
    assert collision.windows == audit.violations
    assert collision.example
    assert collision.example.strip() in LEAK


def test_it_is_found_at_any_offset(repeats: list[ManifestItem]) -> None:
    moved = repeats[1].model_copy(
        update={
            "donor_prompts": (
                repeats[1].donor_prompts[0].model_copy(update={"text": "Well, hm: " + LEAK, "metadata": {}}),
            )
        }
    )
    assert _audited([_with_leak(repeats[0], "recipient"), moved, *repeats[2:]]).violations >= 1


def test_two_recipients_or_two_donors_alone_are_none(repeats: list[ManifestItem]) -> None:
    assert _audited([*(_with_leak(item, "recipient") for item in repeats[:2]), *repeats[2:]]).violations == 0
    assert _audited([*(_with_leak(item, "donor") for item in repeats[:2]), *repeats[2:]]).violations == 0


def test_the_same_source_may_share_with_itself(repeats: list[ManifestItem]) -> None:
    both = _with_leak(_with_leak(repeats[0], "recipient"), "donor")
    assert _audited([both, *repeats[1:]]).violations == 0


def test_two_rows_about_one_document_are_one_source(repeats: list[ManifestItem]) -> None:
    twin = repeats[0].model_copy(update={"source_id": "another row", "item_id": "0" * 16})
    donor = twin.donor_prompts[0]
    named = donor.model_copy(update={"metadata": {**donor.metadata, "source_id": "another row"}})
    twin = twin.model_copy(update={"donor_prompts": (named,)})
    assert _audited([repeats[0], twin]).violations > 0

    def one_document(item: ManifestItem) -> ManifestItem:
        metadata = {**item.metadata, "document_id": "d"}
        donor = item.donor_prompts[0]
        same = donor.model_copy(update={"metadata": {**donor.metadata, "document_id": "d"}})
        return item.model_copy(update={"metadata": metadata, "donor_prompts": (same,)})

    assert _audited([one_document(repeats[0]), one_document(twin)]).violations == 0


def test_what_most_sources_share_is_boilerplate(repeats: list[ManifestItem]) -> None:
    items = [_with_leak(_with_leak(item, "recipient"), "donor") for item in repeats[:4]] + repeats[4:]
    audit = _audited(items)
    assert audit.violations == 0
    assert audit.boilerplate_in_evidence > 0
    assert _audited(items, share=0.9).violations > 0


def test_a_control_whose_own_donor_shares_text_is_counted(repeats: list[ManifestItem]) -> None:
    items = build_synthetic(seed=4, bands_tokens=(700,), transforms=("negative_control",))
    assert _audited(items).negative_controls_touched.numerator == 0
    touched = _with_leak(_with_leak(items[0], "recipient"), "donor")
    audit = _audited([touched, *items[1:]])
    assert (audit.negative_controls_touched.numerator, audit.negative_controls_touched.denominator) == (1, 3)
    assert audit.violations > 0


def test_a_foreign_manifest_without_marks_is_audited_whole(repeats: list[ManifestItem]) -> None:
    bare = [
        item.model_copy(
            update={
                "metadata": {},
                "donor_prompts": tuple(donor.model_copy(update={"metadata": {}}) for donor in item.donor_prompts),
            }
        )
        for item in repeats
    ]
    audit = _audited(bare)
    assert audit.boilerplate_outside_evidence == 0
    assert audit.sources == 6
    # The instructions of the builder stand in all of them.
    assert audit.boilerplate_in_evidence > 0


def test_the_command_exits_with_1_and_shows_an_example(
    sembench: Command, repeats: list[ManifestItem], tmp_path: Path
) -> None:
    manifest = tmp_path / "m.jsonl"
    write_manifest(manifest, [_with_leak(repeats[0], "recipient"), _with_leak(repeats[1], "donor"), *repeats[2:]])
    result = sembench("audit-manifest", "--manifest", manifest, "--output", tmp_path / "new" / "audit.json")
    assert result.exit_code == 1
    assert "quick auditor" in result.stdout
    assert "shared by unrelated sources" in result.stderr
    written = json.loads((tmp_path / "new" / "audit.json").read_text(encoding="utf-8"))
    assert written["violations"] > 0


def test_the_command_exits_with_0_where_all_is_well(
    sembench: Command, repeats: list[ManifestItem], tmp_path: Path
) -> None:
    write_manifest(tmp_path / "m.jsonl", repeats)
    result = sembench("audit-manifest", "--manifest", tmp_path / "m.jsonl", "--block-size", "16")
    assert result.exit_code == 0, result.output
    assert "violations: 0 of " in result.stdout


@given(st.lists(st.integers(0, 2**31 - 1), max_size=60), st.integers(1, 20))
def test_windows_are_equal_exactly_where_the_tokens_are(tokens: list[int], size: int) -> None:
    tokens = tokens + tokens[::2]
    hashes = hash_windows(tokens, size)
    runs = [tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)]
    assert len(hashes) == max(0, len(runs))
    assert len(np.unique(hashes)) == len(set(runs))
