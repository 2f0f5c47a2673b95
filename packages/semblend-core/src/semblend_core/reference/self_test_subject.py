"""The reference engine as a subject of the per-model self-test."""

from __future__ import annotations

from collections.abc import Mapping

import transformers
from torch import Tensor

from semblend_core.contract import Plan, TokenIds
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.self_test import SelfTestIdentity
from semblend_core.reference.engine import ReferenceEngine
from semblend_core.reference.prefill import Prefill


class ReferenceSubject:
    """Runs the self-test's requests on a reference engine, through its own relocation."""

    span_alignment = 1

    def __init__(self, engine: ReferenceEngine, *, revision: str = "local") -> None:
        self.engine = engine
        self.revision = revision

    @property
    def identity(self) -> SelfTestIdentity:
        return SelfTestIdentity(
            engine="reference",
            engine_version=f"transformers {transformers.__version__}",
            model=str(self.engine.model.config._name_or_path or type(self.engine.model).__name__),
            revision=self.revision,
            dtype=str(self.engine.geometry.dtype).removeprefix("torch."),
            kv_layout="tokens-heads-dim",
        )

    @property
    def vocabulary(self) -> int:
        return self.engine.vocabulary

    @property
    def max_tokens(self) -> int:
        return self.engine.max_tokens

    def prefill(self, token_ids: TokenIds) -> tuple[DonorKv, Tensor]:
        return self._answer(self.engine.prefill(token_ids, room=0))

    def prefill_with(self, token_ids: TokenIds, plan: Plan, donors: Mapping[str, DonorKv]) -> tuple[DonorKv, Tensor]:
        return self._answer(self.engine.sparse_prefill(token_ids, plan, donors, room=0))

    def _answer(self, prefill: Prefill) -> tuple[DonorKv, Tensor]:
        return self.engine.capture(prefill.workspace, prefill.token_ids.size, approximate=True), prefill.logits
