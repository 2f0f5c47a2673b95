"""Items and records of a run, made by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from sembench.schema import ManifestItem, RequestRecord, RunIdentity


def hex_id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


@pytest.fixture
def make_item() -> Callable[..., ManifestItem]:
    def make(name: str, transform: str = "rag_reorder", answers: tuple[str, ...] = ("yes",)) -> ManifestItem:
        return ManifestItem(
            item_id=hex_id(name),
            dataset="test",
            source_id=name,
            transform=transform,
            donor_prompts=(),
            recipient_prompt="prompt",
            input="question",
            answers=answers,
            negative_control=transform == "negative_control",
        )

    return make


@pytest.fixture
def make_record() -> Callable[..., RequestRecord]:
    def make(item: ManifestItem, arm: str, **figures: Any) -> RequestRecord:
        return RequestRecord(
            item_id=item.item_id,
            arm=arm,  # type: ignore[arg-type]
            dataset=item.dataset,
            transform=item.transform,
            negative_control=item.negative_control,
            **figures,
        )

    return make


@pytest.fixture
def identity() -> RunIdentity:
    return RunIdentity(
        kind="embedded",
        started_at="2026-01-01T00:00:00+00:00",
        finished_at=None,
        manifest=None,
        manifest_sha256=None,
        manifest_items=None,
        command=[],
        versions={},
        host={},
    )
