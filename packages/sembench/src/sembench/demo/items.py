"""What the demo serves: generated documents, each prompt a change of what was served before."""

from __future__ import annotations

from sembench.manifests import build_synthetic
from sembench.schema import ManifestItem

LABELS = {
    "exact_repeat": "nothing (same prompt again)",
    "instruction_variant": "the instruction",
    "same_evidence_new_task": "the task, now in front",
    "rag_reorder": "the order of passages",
    "multi_donor_composite": "passages of several requests",
    "sparse_edit": "4% of the sentences",
    "entity_swap_control": "all names and figures",
    "negative_control": "everything (control)",
}
"""Transforms in the order in which they are shown, and what each changed of the prompts before it."""

_SHORT = 1_600
_LONG = 4_000


def demo_items(seed: int) -> list[ManifestItem]:
    """One item per transform on a document of middle length, and a long one behind a new instruction."""
    short = build_synthetic(seed=seed, domains=("support_tickets",), bands_tokens=(_SHORT,), transforms=tuple(LABELS))
    long = build_synthetic(
        seed=seed, domains=("contract_review",), bands_tokens=(_LONG,), transforms=("instruction_variant",)
    )
    order = list(LABELS)
    return [*sorted(short, key=lambda item: order.index(item.transform)), *long]
