"""What the demo serves: a handbook that ships with the package, each prompt a change of what was served before."""

from __future__ import annotations

from importlib import resources

from sembench.manifests import BuildOptions, build_synthetic
from sembench.manifests.domains import DOMAINS
from sembench.manifests.items import build_items
from sembench.manifests.source import Fact, Source
from sembench.manifests.synthetic import SyntheticWriter
from sembench.schema import ManifestItem

LABELS = {
    "exact_repeat": "nothing: same prompt again",
    "instruction_variant": "the instruction",
    "same_evidence_new_task": "the task, put in front",
    "rag_reorder": "the order of 4 passages",
    "multi_donor_composite": "passages of 4 requests",
    "sparse_edit": "4% of the sentences",
    "entity_swap_control": "all names and figures",
    "negative_control": "everything (control)",
}
"""Transforms in the order in which they are shown, and what each changed of the prompts served before."""

_KEEPER = Fact("Who is the keeper of the lighthouse?", "Who looks after the lighthouse?", ("Marta Olsen",))
_BUILT = Fact("When was the lighthouse built?", "In which year was the lighthouse put up?", ("1887",))
_MASTER = Fact("Who is the master of the boatyard?", "Who runs the boatyard?", ("Ingrid Falk",))
_ASKED = {"instruction_variant": _MASTER, "rag_reorder": _BUILT}
"""Where it is not the keeper: answers side by side are of different questions."""
_LONG_TOKENS = 4_000


def demo_items(seed: int) -> list[ManifestItem]:
    """An item per transform on the handbook, and a long generated document behind a new instruction."""
    stranger = SyntheticWriter(seed).write(DOMAINS["log_triage"], "demo-unrelated", 1_500, with_swap=False)
    items = []
    for transform in LABELS:
        options = BuildOptions("demo", seed, (transform,))
        items += build_items([_handbook(transform)], options, lambda source: stranger).items
    return items + build_synthetic(
        seed=seed, domains=("support_tickets",), bands_tokens=(_LONG_TOKENS,), transforms=("instruction_variant",)
    )


def _handbook(transform: str) -> Source:
    text = resources.files("sembench.demo").joinpath("text/harbor_handbook.txt").read_text(encoding="utf-8")
    scored = _ASKED.get(transform, _KEEPER)
    others = tuple(fact for fact in (_MASTER, _BUILT, _KEEPER) if fact is not scored)
    return Source("demo", "harbor", "harbor-handbook", "harbor handbook", text.strip(), (scored, *others))
