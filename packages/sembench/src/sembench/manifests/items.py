"""Manifest items from sources: transforms applied, ids given, lengths and evidence recorded, lines written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from sembench.identity import sha256_of
from sembench.manifests.draws import Draws, stable_id
from sembench.manifests.prompts import Prompt
from sembench.manifests.source import SourceDocument
from sembench.manifests.text_units import ESTIMATE_METHOD, estimate_tokens, holds_answer
from sembench.manifests.transforms import TRANSFORM_FUNCTIONS, Context, DonorDraft, Draft, NotPossible
from sembench.schema import TRANSFORMS, DonorPrompt, InputError, ManifestItem, write_atomically

BUILDER_VERSION = "1"
"""Raised whenever the same inputs and seed would give other bytes."""


ReportProgress = Callable[[str, int, int], None]
"""Hears of progress: of what, how many are done, and of how many."""


def ignore_progress(stage: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class BuildOptions:
    """What decides the bytes of a manifest, besides its sources."""

    profile: str
    seed: int
    transforms: tuple[str, ...] = TRANSFORMS
    max_segments: int = 4
    min_segment_chars: int = 400
    extra: dict[str, Any] = field(default_factory=dict)
    """What the profile itself was asked for: bands, revision, digest of the input."""

    def recorded(self) -> dict[str, Any]:
        """As it stands in the metadata of every item."""
        return {
            "version": BUILDER_VERSION,
            "profile": self.profile,
            "seed": self.seed,
            "options": {
                "transforms": list(self.transforms),
                "max_segments": self.max_segments,
                "min_segment_chars": self.min_segment_chars,
                **self.extra,
            },
        }


@dataclass
class Built:
    """Items, and why some are not there."""

    items: list[ManifestItem] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Transform and reason, with the number of sources."""


def build_items(
    sources: Sequence[SourceDocument],
    options: BuildOptions,
    stranger: Callable[[SourceDocument], SourceDocument],
    report: ReportProgress = ignore_progress,
    claims: Callable[[SourceDocument, str], bool] = lambda source, document: True,
    only: tuple[str, ...] | None = None,
) -> Built:
    """One item for each transform of each source, two for a conversation.

    ``only`` leaves out the other transforms of the options, which are recorded all the same.
    """
    for name in options.transforms:
        if name not in TRANSFORM_FUNCTIONS:
            raise InputError(f"--transforms: {name!r} is none of {', '.join(TRANSFORM_FUNCTIONS)}")
    built = Built()
    recorded = options.recorded()
    for done, source in enumerate(sources, 1):
        for name in only or options.transforms:
            draws = Draws(options.seed, source.dataset, source.source_id, name)
            context = Context(draws, options.max_segments, options.min_segment_chars, stranger, claims)
            try:
                drafts = TRANSFORM_FUNCTIONS[name](source, context)
            except NotPossible as reason:
                built.skipped[f"{name}: {reason}"] += 1
                continue
            built.items += [_item(source, name, index, draft, recorded) for index, draft in enumerate(drafts)]
        report("items", done, len(sources))
    return built


def _item(source: SourceDocument, transform: str, index: int, draft: Draft, builder: dict[str, Any]) -> ManifestItem:
    recipient = draft.recipient
    return ManifestItem(
        item_id=stable_id(source.dataset, source.source_id, transform, "recipient", index),
        dataset=source.dataset,
        source_id=source.source_id,
        transform=transform,
        donor_prompts=tuple(
            _donor(source, transform, index, number, donor) for number, donor in enumerate(draft.donors)
        ),
        recipient_prompt=recipient.text,
        input=draft.question,
        answers=draft.answers,
        negative_control=draft.negative_control,
        metadata={
            **source.metadata,
            **draft.metadata,
            "domain": source.domain,
            "builder": builder,
            "answer_in_evidence": holds_answer(recipient.evidence_text, draft.answers),
            **_lengths(recipient),
        },
    )


def _donor(source: SourceDocument, transform: str, index: int, number: int, donor: DonorDraft) -> DonorPrompt:
    return DonorPrompt(
        donor_id=stable_id(source.dataset, source.source_id, transform, f"donor-{index}", number),
        text=donor.prompt.text,
        label=donor.label,
        metadata={
            **donor.metadata,
            **{name: donor.source.metadata[name] for name in ("document_id",) if name in donor.source.metadata},
            "dataset": donor.source.dataset,
            "source_id": donor.source.source_id,
            "domain": donor.source.domain,
            **_lengths(donor.prompt),
        },
    )


def _lengths(prompt: Prompt) -> dict[str, Any]:
    return {
        "evidence_spans": [list(span) for span in prompt.evidence],
        "estimated_tokens": _estimated(prompt.text),
        "estimate": ESTIMATE_METHOD,
    }


@lru_cache(maxsize=64)
def _estimated(text: str) -> int:
    """A prompt is a donor of several items; counting it once is enough."""
    return estimate_tokens(text)


def format_item(item: ManifestItem) -> str:
    return json.dumps(item.model_dump(mode="json"), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def write_manifest(path: Path, items: Iterable[ManifestItem]) -> str:
    """Writes the manifest and returns its sha256."""
    write_atomically(path, "".join(format_item(item) + "\n" for item in items))
    return sha256_of(path)
