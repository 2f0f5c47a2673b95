"""One case of the study: the cold truth, what is kept of its donors, and how far from the truth reuse comes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quality_data.answers import usefulness
from quality_data.cases import Case
from semblend_core import DonorOffer, LookupRequest, Namespace, Plan, Settings, create_provider
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.recompute import RecomputePolicy
from semblend_core.reference import Prefill, ReferenceEngine, prefill_reusing

NAMESPACE = Namespace(
    model="the model of the study",
    revision="1",
    tokenizer="its own",
    dtype="float32",
    kv_layout="dense",
    block_size=1,
    adapter=None,
    salt="tenant",
)
ANSWER_TOKENS = 48
EQUAL_TOKENS = 20


@dataclass(frozen=True, slots=True)
class Measured:
    """One arm on one case, against the cold prefill."""

    kl: float
    """Mean over the continuation of KL(cold || reuse), in nats."""
    kl_max: float
    ppl_ratio: float
    top1: float
    """Share of the continuation's tokens whose most likely token is the same."""
    equal: float
    """1 where the first tokens of a greedy answer, as many as ``EQUAL_TOKENS``, are those of the cold one."""
    recompute: float
    """Share of the reusable tokens that was computed, probes included."""
    flops_saved: float
    ttft_ratio: float | None
    """Cold prefill time by prefill time with reuse. None where several processes shared the device."""
    answer: float | None = None
    """Usefulness of the greedy answer with reuse, by the case's judge. None where the source has no answer."""
    said: str | None = None
    """That answer: what a judge made of it can be checked."""


class Subject:
    """A case, computed once for all arms: cold KV and continuation, donors' KV, and the plan that discovery finds."""

    def __init__(self, engine: ReferenceEngine, case: Case, continuation_tokens: int, decode: Any) -> None:
        self.case, self._engine, self._decode = case, engine, decode
        self.tokens = np.array(case.recipient, np.int32)
        self.plan = find_plan(case)
        self.cold = engine.prefill(self.tokens, room=continuation_tokens + 8)
        greedy = engine.decode(self.cold, continuation_tokens, stop_ids=())
        self.continuation = np.array(greedy, np.int32)
        self._truth = engine.score(self.cold, self.continuation).log_softmax(-1)
        self._donors: dict[str, DonorKv] = {}
        if self.plan is not None:
            for donor_id in self.plan.donor_ids:
                # What stands behind the last span has no part in it, and need not be computed.
                end = max(span.donor_end for span in self.plan.spans if span.donor_id == donor_id)
                tokens = case.donors[donor_id][:end]
                self._donors[donor_id] = engine.capture(engine.prefill(tokens, room=0).workspace, end)

    def measure(
        self,
        policy: RecomputePolicy,
        budget: float,
        *,
        whole_steps: bool,
        run: int = 1,
        answer: bool = True,
        timed: bool = True,
    ) -> tuple[Measured, float]:
        """The figures, and the largest difference of a logit of the first token."""
        assert self.plan is not None
        reused = prefill_reusing(
            self._engine,
            self.tokens,
            self.plan,
            self._donors,
            policy,
            budget,
            exact_prefix=self.cold.workspace if self.plan.exact_prefix_tokens else None,
            truth=(self.cold, self.continuation),
            room=self.continuation.size + 8,
            whole_steps=whole_steps,
            block=run,
        )
        prefill, recompute = reused.prefill, reused.recompute
        logits = self._engine.score(prefill, self.continuation)
        rows = np.concatenate([np.arange(row.start, row.end) for row in recompute.plan.rows])
        probe = recompute.probe_tokens * self._flops(np.arange(self.tokens.size)) / self.tokens.size
        saved = 1 - (self._flops(rows) + probe) / self._flops(np.arange(self.tokens.size))
        said = self._decode(self._greedy(prefill, logits)) if answer and self.case.answer else None
        figures = Measured(
            **self.compare(logits),
            recompute=recompute.share,
            flops_saved=saved,
            ttft_ratio=self.cold.seconds / prefill.seconds if timed else None,
            answer=None if said is None else self._useful(said),
            said=said,
        )
        return figures, float((prefill.logits - self.cold.logits).abs().max())

    @cached_property
    def cold_said(self) -> str | None:
        return self._decode(self._answer_part(self.continuation.tolist())) if self.case.answer else None

    @property
    def cold_answer(self) -> float | None:
        return None if self.cold_said is None else self._useful(self.cold_said)

    def _greedy(self, prefill: Prefill, logits: Tensor) -> list[int]:
        """The greedy answer. Where the forced text shows that it is the cold one so far, no token of it is decoded."""
        cold = self.continuation[:ANSWER_TOKENS]
        chosen = logits[: cold.size].argmax(-1).cpu().numpy().astype(np.int32)
        strays = np.flatnonzero(chosen != cold)
        same = int(strays[0]) if strays.size else int(cold.size)
        shared = self._answer_part(cold[:same].tolist())
        if len(shared) < same or same == cold.size:
            return shared
        said = np.array([*shared, chosen[same]], np.int32)
        if int(said[-1]) in self._engine.end_of_text:
            return shared
        so_far = np.concatenate([self.tokens, said])
        prefill.workspace.truncate(self.tokens.size)
        further = self._engine.compute(prefill.workspace, said, np.arange(self.tokens.size, so_far.size))
        assert further is not None
        behind = replace(prefill, token_ids=so_far, logits=further)
        return [*said.tolist(), *self._engine.decode(behind, int(cold.size - said.size))]

    def _answer_part(self, tokens: list[int]) -> list[int]:
        """As far as an engine would have served it."""
        ends = self._engine.end_of_text
        until = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
        return tokens[: min(until, ANSWER_TOKENS)]

    def compare(self, logits: Tensor) -> dict[str, float]:
        """KL, PPL ratio and agreement of ``logits`` over the continuation, against the cold ones."""
        truth, found = self._truth, logits.log_softmax(-1)
        kl = (truth.exp() * (truth - found)).sum(-1).clamp(min=0)
        same = truth.argmax(-1) == found.argmax(-1)
        index = torch.from_numpy(self.continuation.astype(np.int64)).to(truth.device)[:, None]
        excess = (truth.gather(1, index) - found.gather(1, index)).mean()
        return {
            "kl": float(kl.mean()),
            "kl_max": float(kl.max()),
            "ppl_ratio": float(excess.exp()),
            "top1": float(same.float().mean()),
            "equal": float(same[:EQUAL_TOKENS].all()),
        }

    def floor(self) -> dict[str, float]:
        """Cold against cold: the same prompt in two chunks, so that sums are taken in another order."""
        half = self.tokens.size // 2
        again = self._engine.prefill(self.tokens[:half], room=self.tokens.size)
        self._engine.compute(
            again.workspace, self.tokens[half:-1], np.arange(half, self.tokens.size - 1), logits="none"
        )
        last = self._engine.compute(again.workspace, self.tokens[-1:], [self.tokens.size - 1])
        assert last is not None
        return self.compare(self._rest(again.workspace, last))

    def fp8_floor(self) -> dict[str, float]:
        """The cold KV, stored as fp8 (e4m3, one scale per layer) and read back: noise that engines accept."""
        workspace = self._engine.workspace(self.cold.workspace.capacity)
        cold = self.cold.workspace
        workspace.copy_in(
            0,
            _through_fp8(cold.keys[:, : self.tokens.size]),
            _through_fp8(cold.values[:, : self.tokens.size]),
            approximate=True,
        )
        return self.compare(self._rest(workspace, self.cold.logits))

    def layer_deviation(self) -> list[float]:
        """Per layer, the norm of relocated minus cold V by the norm of cold V, over reused positions."""
        assert self.plan is not None
        prefix = self.cold.workspace if self.plan.exact_prefix_tokens else None
        placed = self._engine.place_plan(self.plan, self._donors, exact_prefix=prefix)
        inside = np.concatenate([np.arange(span.target_start, span.target_end) for span in self.plan.spans])
        cold = self.cold.workspace.values[:, inside].float()
        change = (placed.values[:, inside].float() - cold).flatten(1).norm(dim=1)
        return [float(value) for value in change / cold.flatten(1).norm(dim=1)]

    def _rest(self, workspace: Any, first: Tensor) -> Tensor:
        workspace.reserve(self.tokens.size + self.continuation.size)
        positions = np.arange(self.tokens.size, self.tokens.size + self.continuation.size - 1)
        rest = self._engine.compute(workspace, self.continuation[:-1], positions, logits="all")
        assert rest is not None
        return torch.cat([first[None], rest])

    def _useful(self, said: str) -> float:
        return usefulness(self.case.judge, said, self.case.answer, self.case.outdated, self.case.rule)

    def _flops(self, positions: np.ndarray) -> float:
        config = self._engine.config
        weights = sum(
            p.numel() for n, p in self._engine.model.named_parameters() if "embed" not in n and "lm_head" not in n
        )
        attention = 4.0 * config.num_hidden_layers * config.num_attention_heads * self._engine.geometry.key_dim
        return float(2.0 * weights * positions.size + attention * (positions + 1).sum())


def find_plan(case: Case) -> Plan | None:
    """What discovery finds at its defaults behind the exact prefix that an engine's own cache would cover."""
    provider = create_provider(Settings(lookup_budget_ms=10_000.0), engine="study")
    for donor_id, tokens in case.donors.items():
        provider.offer_donor(DonorOffer(donor_id, NAMESPACE, np.array(tokens, np.int32)))
    exact = max(_common_prefix(case.recipient, tokens) for tokens in case.donors.values())
    tokens = np.array(case.recipient, np.int32)
    found = provider.lookup(LookupRequest("study", NAMESPACE, tokens, exact_prefix_tokens=min(exact, tokens.size - 1)))
    provider.close()
    return found.plan


def _common_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _through_fp8(kv: Tensor) -> Tensor:
    scale = kv.abs().amax(dim=(1, 2, 3), keepdim=True) / 448.0
    return (kv / scale).to(torch.float8_e4m3fn).to(kv.dtype) * scale
