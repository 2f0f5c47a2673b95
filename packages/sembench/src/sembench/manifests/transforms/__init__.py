"""The transforms: what makes a recipient and its donors out of a source."""

from collections.abc import Callable

from sembench.manifests.source import SourceDocument
from sembench.manifests.transforms.controls import entity_swap_control, negative_control
from sembench.manifests.transforms.draft import Context, DonorDraft, Draft, NotPossible
from sembench.manifests.transforms.edits import fuzzy_edit, sparse_edit
from sembench.manifests.transforms.facts import absent_fact, copy_verbatim, edited_fact
from sembench.manifests.transforms.overlap import partial_overlap
from sembench.manifests.transforms.privacy import planted_context, private_preamble
from sembench.manifests.transforms.segments import multi_donor_composite, multi_turn, rag_reorder
from sembench.manifests.transforms.whole_document import (
    exact_repeat,
    instruction_variant,
    leading_evidence_new_task,
    question_paraphrase,
    repeat_shifted,
    same_evidence_new_task,
)

TRANSFORM_FUNCTIONS: dict[str, Callable[[SourceDocument, Context], list[Draft]]] = {
    function.__name__: function
    for function in (
        exact_repeat,
        instruction_variant,
        same_evidence_new_task,
        leading_evidence_new_task,
        rag_reorder,
        multi_donor_composite,
        fuzzy_edit,
        sparse_edit,
        repeat_shifted,
        question_paraphrase,
        multi_turn,
        entity_swap_control,
        negative_control,
        private_preamble,
        planted_context,
        copy_verbatim,
        edited_fact,
        absent_fact,
        partial_overlap,
    )
}
"""In the order of the published list."""

__all__ = ["TRANSFORM_FUNCTIONS", "Context", "DonorDraft", "Draft", "NotPossible"]
