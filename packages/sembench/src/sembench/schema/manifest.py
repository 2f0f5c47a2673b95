"""A manifest: JSON lines, one benchmark item each, with the prompts in full."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MANIFEST_SCHEMA = "sembench.manifest.v1"

TRANSFORMS = (
    "exact_repeat",
    "instruction_variant",
    "same_evidence_new_task",
    "leading_evidence_new_task",
    "rag_reorder",
    "multi_donor_composite",
    "fuzzy_edit",
    "sparse_edit",
    "repeat_shifted",
    "question_paraphrase",
    "multi_turn",
    "entity_swap_control",
    "negative_control",
)
"""What may be done to a source to make a recipient of its donors: all that ``build`` does unless told."""
PRIVACY_TRANSFORMS = ("private_preamble", "planted_context")
"""What a donor's opening tells or suggests to who never sent it. Twelve items a source, so only where asked for."""
FACT_TRANSFORMS = ("copy_verbatim", "edited_fact", "absent_fact")
"""What reuse may quietly get wrong. Built where asked for: the published manifests are without them."""
SIMILARITY_TRANSFORMS = ("partial_overlap",)
"""Donors alike in a part only, one for each band of similarity. Four items a source, so only where asked for."""

Id = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class DonorPrompt(BaseModel):
    """A prompt that is served first, so that its KV may be reused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    donor_id: Id
    text: Annotated[str, Field(min_length=1)]
    label: str
    metadata: dict[str, Any] = {}


class ManifestItem(BaseModel):
    """Donors, and the recipient that is measured after them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    item_id: Id
    dataset: str
    source_id: str
    transform: str
    donor_prompts: tuple[DonorPrompt, ...]
    recipient_prompt: Annotated[str, Field(min_length=1)]
    input: str
    """The question alone, without the evidence."""
    answers: tuple[str, ...]
    """Accepted answers; empty where none is known, and then no answer is scored."""
    negative_control: bool
    """Nothing may be reused: the donor is of another domain."""
    metadata: dict[str, Any] = {}
    benchmark_version: Literal["sembench.manifest.v1"] = "sembench.manifest.v1"

    @model_validator(mode="after")
    def _transform_is_known(self) -> ManifestItem:
        known = (*TRANSFORMS, *PRIVACY_TRANSFORMS, *FACT_TRANSFORMS, *SIMILARITY_TRANSFORMS)
        if self.transform not in known:
            raise ValueError(f"transform: {self.transform!r} is none of {', '.join(known)}")
        if self.transform == "negative_control" and not self.negative_control:
            raise ValueError("negative_control: must be true for the transform negative_control")
        return self
