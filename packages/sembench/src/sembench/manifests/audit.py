"""The collision audit: does a donor share a token block with a recipient that it has nothing to do with?

Such a block would count as reuse in a control, or as semantic discovery where chance put the same words together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sembench.manifests.audited_texts import Corpus, WindowHashes, collect_texts, unite
from sembench.manifests.items import ReportProgress, ignore_progress
from sembench.schema import ManifestItem, Rate
from sembench.tokenization import Tokenizer

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
    negative_controls_touched: Rate
    """Negative controls whose own donor shares a window with the recipient, in evidence or in the frames around it."""
    boilerplate_outside_evidence: int
    """Distinct windows of frames (instructions, wrappers, questions) that prompts of several sources share."""
    boilerplate_in_evidence: int
    """Distinct windows of evidence that more than ``boilerplate_share`` of the sources share."""
    entity_swap_overlap: Rate
    """Recipient windows of entity_swap_control that its own donor has too: wording that no name interrupts."""


def audit_manifest(
    items: Sequence[ManifestItem],
    tokenizer: Tokenizer,
    block_size: int,
    boilerplate_share: float,
    *,
    manifest: str,
    manifest_sha256: str,
    report: ReportProgress = ignore_progress,
) -> Audit:
    """Evidence that more than ``boilerplate_share`` of the sources (and three at least) have is no collision."""
    corpus = collect_texts(items, tokenizer, block_size, report)
    evidence = {name: unite([corpus.recipients[name], corpus.donors[name]]) for name in corpus.names}
    shared, sources = _shared(evidence)
    wide = sources > max(2, boilerplate_share * len(corpus.names))
    collisions = _collisions(corpus, shared[~wide])
    pairs = Counter({pair: len(common) for pair, common in collisions.items()})
    return Audit(
        manifest=manifest,
        manifest_sha256=manifest_sha256,
        tokenizer=tokenizer.name,
        block_size=block_size,
        boilerplate_share=boilerplate_share,
        items=len(items),
        sources=len(corpus.names),
        evidence_windows=len(unite(list(evidence.values()))),
        violations=len(unite(list(collisions.values()))),
        collisions=[
            Collision(
                recipient_source=corpus.names[receiver],
                donor_source=corpus.names[giver],
                windows=count,
                example=corpus.example(receiver, collisions[receiver, giver]) if rank < _EXAMPLES else None,
            )
            for rank, ((receiver, giver), count) in enumerate(sorted(pairs.items(), key=lambda pair: (-pair[1], pair)))
        ],
        negative_controls_touched=_touched(items, corpus),
        boilerplate_outside_evidence=len(_shared(corpus.frames)[0]),
        boilerplate_in_evidence=int(wide.sum()),
        entity_swap_overlap=_swap_overlap(items, corpus),
    )


def _shared(by_source: dict[str, WindowHashes]) -> tuple[WindowHashes, Any]:
    """The windows that several sources have, and how many have each."""
    together = [hashes for hashes in by_source.values() if len(hashes)]
    if not together:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    values, counts = np.unique(np.concatenate(together), return_counts=True)
    return values[counts > 1], counts[counts > 1]


def _collisions(corpus: Corpus, suspects: WindowHashes) -> dict[tuple[str, str], WindowHashes]:
    """Pairs of different sources, with the windows that the first has in a recipient and the second in a donor."""
    receiving = _among(corpus.recipients, suspects)
    giving = _among(corpus.donors, suspects)
    found = {}
    for receiver, wanted in receiving.items():
        for giver, offered in giving.items():
            common = np.intersect1d(wanted, offered, assume_unique=True)
            if receiver != giver and len(common):
                found[receiver, giver] = common
    return found


def _among(by_source: dict[str, WindowHashes], suspects: WindowHashes) -> dict[str, WindowHashes]:
    """Sources with any of them."""
    found = {name: np.intersect1d(hashes, suspects, assume_unique=True) for name, hashes in by_source.items()}
    return {name: hashes for name, hashes in found.items() if len(hashes)}


def _touched(items: Sequence[ManifestItem], corpus: Corpus) -> Rate:
    """Here frames count too: an engine reuses an instruction as readily as a document."""
    controls = [item for item in items if item.negative_control]
    touched = 0
    for item in controls:
        given = unite([corpus.windows_of(donor.text) for donor in item.donor_prompts])
        touched += bool(np.isin(corpus.windows_of(item.recipient_prompt), given).any())
    return Rate.of(touched, len(controls))


def _swap_overlap(items: Sequence[ManifestItem], corpus: Corpus) -> Rate:
    overlaps = [_own_overlap(item, corpus) for item in items if item.transform == "entity_swap_control"]
    return Rate.of(sum(len(common) for common, _ in overlaps), sum(len(all_) for _, all_ in overlaps))


def _own_overlap(item: ManifestItem, corpus: Corpus) -> tuple[WindowHashes, WindowHashes]:
    """The windows that an item's recipient shares with its own donors, and all that it has."""
    taken = corpus.evidence_of(item.recipient_prompt, item.metadata)
    given = unite([corpus.evidence_of(donor.text, donor.metadata) for donor in item.donor_prompts])
    return np.intersect1d(taken, given, assume_unique=True), taken
