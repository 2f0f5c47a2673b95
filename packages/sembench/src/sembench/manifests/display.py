"""What the manifest commands show of what they built and found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sembench.manifests.audit import Audit
from sembench.manifests.items import Built


def print_built(built: Built, path: Path, sha256: str) -> None:
    console = Console(soft_wrap=True, highlight=False)
    items = built.items
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("transform", no_wrap=True)
    for heading in ("items", "donors", "tokens, about", "answer stated"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in dict.fromkeys(item.transform for item in items):
        of_it = [item for item in items if item.transform == name]
        tokens = [int(item.metadata["estimated_tokens"]) for item in of_it]
        answered = sum(bool(item.metadata["answer_in_evidence"]) for item in of_it)
        donors = sum(len(item.donor_prompts) for item in of_it)
        table.add_row(
            name, str(len(of_it)), str(donors), f"{min(tokens)} to {max(tokens)}", f"{answered} of {len(of_it)}"
        )
    console.print(table)
    for reason, count in sorted(built.skipped.items()):
        console.print(f"left out: {reason} ({count} sources)")
    datasets = Counter(item.dataset for item in items)
    console.print("datasets: " + ", ".join(f"{name} {count}" for name, count in datasets.items()))
    console.print(f"{path}: {len(items)} items, sha256 {sha256}")


def print_audit(audit: Audit) -> None:
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{audit.items} items from {audit.sources} sources, tokenizer {audit.tokenizer}")
    console.print(
        f"violations: {audit.violations} of {audit.evidence_windows} runs of {audit.block_size} tokens of evidence",
        style="red" if audit.violations else None,
    )
    for collision in audit.collisions:
        console.print(f"  {collision.recipient_source} <- {collision.donor_source}: {collision.windows}", markup=False)
        if collision.example is not None:
            console.print(f"    {collision.example!r}", markup=False)
    touched = audit.negative_controls_touched
    console.print(
        f"negative controls whose own donor shares a run: {touched.numerator:.0f} of {touched.denominator:.0f}"
    )
    console.print(
        f"boilerplate, counted apart: {audit.boilerplate_outside_evidence} runs in instructions and wrappers, "
        f"{audit.boilerplate_in_evidence} in evidence of more than {audit.boilerplate_share:.0%} of the sources"
    )
    overlap = audit.entity_swap_overlap
    if overlap.denominator:
        console.print(
            f"entity_swap_control: {overlap.numerator:.0f} of {overlap.denominator:.0f} runs of a recipient are "
            "also in its own donor"
        )
