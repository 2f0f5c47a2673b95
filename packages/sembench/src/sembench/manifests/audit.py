"""The collision audit: does a donor share a token block with a recipient that it has nothing to do with?

Such a block would count as reuse in a control, or as semantic discovery where chance put the same words together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sembench.manifests.items import Report, unreported
from sembench.manifests.token_windows import Hashes, distinct, windows
from sembench.schema import DonorPrompt, ManifestItem, Rate
from sembench.tokenization import Tokenizer

BOILERPLATE_SHARE = 0.5
"""Evidence that more than this share of the sources (and at least three) have is boilerplate, no collision."""
_EXAMPLES = 5


class Collision(BaseModel):
    """Two sources with common evidence, one in a recipient and one in a donor."""

    model_config = ConfigDict(extra="forbid")

    recipient_source: str
    donor_source: str
    windows: int
    example: str | None = None
    """The shared text, for the first few pairs."""


class Audit(BaseModel):
    """What the audit found. A window is a run of ``block_size`` tokens at any offset, counted once."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal["sembench.audit.v1"] = "sembench.audit.v1"
    manifest: str
    manifest_sha256: str
    tokenizer: str
    block_size: int
    boilerplate_share: float
    items: int
    sources: int
    evidence_windows: int
    """Distinct windows of evidence."""
    violations: int
    """Distinct windows that a recipient has from one source and a donor from another."""
    collisions: list[Collision]
    boilerplate_outside_evidence: int
    """Distinct windows of frames (instructions, wrappers, questions) that prompts of several sources share."""
    boilerplate_in_evidence: int
    """Distinct windows of evidence that more than ``boilerplate_share`` of the sources share."""
    entity_swap_overlap: Rate
    """Recipient windows of entity_swap_control that its own donor has too: wording that no name interrupts."""


@dataclass
class _Group:
    """The texts of one source, by where they stand."""

    recipient: set[str] = field(default_factory=set)
    donor: set[str] = field(default_factory=set)
    frames: set[str] = field(default_factory=set)


def audit_manifest(
    items: Sequence[ManifestItem],
    tokenizer: Tokenizer,
    block_size: int,
    boilerplate_share: float,
    *,
    manifest: str,
    manifest_sha256: str,
    report: Report = unreported,
) -> Audit:
    """Texts that stand in several prompts of a source are tokenized once."""
    groups = _grouped(items)
    hashed = _hashed(groups, tokenizer, block_size, report)
    recipients = {name: distinct([hashed[text] for text in group.recipient]) for name, group in groups.items()}
    donors = {name: distinct([hashed[text] for text in group.donor]) for name, group in groups.items()}
    frames = {name: distinct([hashed[text] for text in group.frames]) for name, group in groups.items()}
    evidence = {name: distinct([recipients[name], donors[name]]) for name in groups}

    shared, sources = _shared(evidence)
    wide = sources > max(2, boilerplate_share * len(groups))
    pairs, violations = _collisions(recipients, donors, shared[~wide])
    return Audit(
        manifest=manifest,
        manifest_sha256=manifest_sha256,
        tokenizer=tokenizer.name,
        block_size=block_size,
        boilerplate_share=boilerplate_share,
        items=len(items),
        sources=len(groups),
        evidence_windows=len(distinct(list(evidence.values()))),
        violations=violations,
        collisions=_described(pairs, groups, hashed, shared[~wide], tokenizer, block_size),
        boilerplate_outside_evidence=len(_shared(frames)[0]),
        boilerplate_in_evidence=int(wide.sum()),
        entity_swap_overlap=_swap_overlap(items, tokenizer, block_size),
    )


def _grouped(items: Sequence[ManifestItem]) -> dict[str, _Group]:
    groups: dict[str, _Group] = defaultdict(_Group)
    for item in items:
        group = groups[_source_of(item)]
        group.recipient.update(_evidence(item.recipient_prompt, item.metadata))
        group.frames.update(_frames(item.recipient_prompt, item.metadata))
        for donor in item.donor_prompts:
            group = groups[_source_of(item, donor)]
            group.donor.update(_evidence(donor.text, donor.metadata))
            group.frames.update(_frames(donor.text, donor.metadata))
    return dict(groups)


def _source_of(item: ManifestItem, donor: DonorPrompt | None = None) -> str:
    """Two rows about one document are one source. An unnamed donor of a negative control is one of its own."""
    metadata = item.metadata if donor is None else donor.metadata
    if "document_id" in metadata:
        return f"document {metadata['document_id']}"
    if donor is not None and "source_id" in metadata:
        return f"{metadata.get('dataset', item.dataset)}/{metadata['source_id']}"
    if donor is not None and item.negative_control:
        return f"donor {donor.donor_id}"
    return f"{item.dataset}/{item.source_id}"


def _evidence(text: str, metadata: dict[str, Any]) -> list[str]:
    """A prompt whose evidence is not marked is evidence altogether."""
    return [text[start:end] for start, end in metadata.get("evidence_spans", [(0, len(text))])]


def _frames(text: str, metadata: dict[str, Any]) -> list[str]:
    edges = [0, *(edge for span in metadata.get("evidence_spans", [(0, len(text))]) for edge in span), len(text)]
    return [text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]


def _hashed(groups: dict[str, _Group], tokenizer: Tokenizer, block_size: int, report: Report) -> dict[str, Hashes]:
    texts = sorted({text for group in groups.values() for text in (*group.recipient, *group.donor, *group.frames)})
    hashed = {}
    for done, (text, tokens) in enumerate(zip(texts, tokenizer.encode_batch(texts), strict=True), 1):
        hashed[text] = windows(tokens, block_size)
        report("texts", done, len(texts))
    return hashed


def _shared(by_source: dict[str, Hashes]) -> tuple[Hashes, Any]:
    """The windows that several sources have, and how many have each."""
    together = [hashes for hashes in by_source.values() if len(hashes)]
    if not together:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    values, counts = np.unique(np.concatenate(together), return_counts=True)
    return values[counts > 1], counts[counts > 1]


def _collisions(
    recipients: dict[str, Hashes], donors: dict[str, Hashes], suspects: Hashes
) -> tuple[Counter[tuple[str, str]], int]:
    """Pairs of different sources by the windows that the first has in a recipient and the second in a donor."""
    receiving = {name: np.intersect1d(hashes, suspects, assume_unique=True) for name, hashes in recipients.items()}
    giving = {name: np.intersect1d(hashes, suspects, assume_unique=True) for name, hashes in donors.items()}
    pairs: Counter[tuple[str, str]] = Counter()
    found: list[Hashes] = []
    for receiver, wanted in receiving.items():
        for giver, offered in giving.items():
            if receiver == giver or not len(wanted) or not len(offered):
                continue
            common = np.intersect1d(wanted, offered, assume_unique=True)
            if len(common):
                pairs[receiver, giver] = len(common)
                found.append(common)
    return pairs, len(distinct(found))


def _described(
    pairs: Counter[tuple[str, str]],
    groups: dict[str, _Group],
    hashed: dict[str, Hashes],
    suspects: Hashes,
    tokenizer: Tokenizer,
    block_size: int,
) -> list[Collision]:
    collisions = []
    for number, ((receiver, giver), count) in enumerate(sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0]))):
        example = None
        if number < _EXAMPLES:
            offered = distinct([hashed[text] for text in groups[giver].donor])
            common = np.intersect1d(offered, suspects)
            example = _shared_text(sorted(groups[receiver].recipient), hashed, common, tokenizer, block_size)
        collisions.append(Collision(recipient_source=receiver, donor_source=giver, windows=count, example=example))
    return collisions


def _shared_text(
    texts: list[str], hashed: dict[str, Hashes], common: Hashes, tokenizer: Tokenizer, block_size: int
) -> str | None:
    for text in texts:
        places = np.flatnonzero(np.isin(hashed[text], common))
        if len(places):
            first = int(places[0])
            start, end = (_characters(text, tokens, tokenizer) for tokens in (first, first + block_size))
            return text[start:end]
    return None


def _characters(text: str, tokens: int, tokenizer: Tokenizer) -> int:
    """How many characters the first ``tokens`` tokens take, by halving: a tokenizer here only goes one way."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high) // 2
        if len(tokenizer.encode(text[:middle])) < tokens:
            low = middle + 1
        else:
            high = middle
    return low


def _swap_overlap(items: Sequence[ManifestItem], tokenizer: Tokenizer, block_size: int) -> Rate:
    common = total = 0
    for item in items:
        if item.transform != "entity_swap_control":
            continue
        given = [
            windows(tokenizer.encode(part), block_size)
            for donor in item.donor_prompts
            for part in _evidence(donor.text, donor.metadata)
        ]
        taken = distinct(
            [windows(tokenizer.encode(part), block_size) for part in _evidence(item.recipient_prompt, item.metadata)]
        )
        common += int(np.isin(taken, distinct(given)).sum())
        total += len(taken)
    return Rate.of(common, total)
