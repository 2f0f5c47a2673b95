"""Trials on the embedded engine: every trial has a provider and a prefix cache of its own."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from sembench.embedded.comparison import generate_greedily
from sembench.embedded.config import EmbeddedConfig, make_chooser
from sembench.embedded.model import EmbeddedModel
from sembench.embedded.server import DonorMemory, ServedPrefill, Server
from sembench.privacy.arms import PrivacyArm
from sembench.privacy.trials import Question, Reading, Trial, check_first_tokens
from semblend_core import Settings, TokenIds, create_provider
from semblend_core.reference import Prefill

if TYPE_CHECKING:
    from semblend_core.kv import DonorKv

_DONOR_MEMORY_BYTES = 1 << 30
_DONOR, _ASKING = "client-1", "client-2"
_ANSWERED = ("planted_context",)
"""A secret shows in log-probabilities long before an answer names it; a plant is there to be named."""


class EmbeddedBench:
    def __init__(self, model: EmbeddedModel, config: EmbeddedConfig) -> None:
        self._model, self._engine, self._config = model, model.engine, config
        self._memory = DonorMemory(_DONOR_MEMORY_BYTES)

    def read_cold(self, question: Question) -> Reading:
        tokens = self._model.encode(question.prompt)
        prefill = self._engine.prefill(tokens, room=self._config.max_output_tokens)
        return Reading(self._log_probs(question, prefill), self._answer(question, prefill), reused_tokens=0)

    def read(self, question: Question, trial: Trial, arm: PrivacyArm) -> Reading:
        tokens = self._model.encode(question.prompt)
        donor = self._model.encode(trial.donor_of(arm))
        served = self._served(arm, donor, tokens)
        return Reading(
            self._log_probs(question, served.prefill),
            self._answer(question, served.prefill),
            served.prefill.reused_tokens,
            _outcome(served),
        )

    def _served(self, arm: PrivacyArm, donor: TokenIds, tokens: TokenIds) -> ServedPrefill:
        settings = Settings(quality_tier=arm.tier, sharing=arm.sharing, lookup_budget_ms=self._config.lookup_budget_ms)
        choose = make_chooser(EmbeddedConfig(tier=arm.tier, policy=arm.policy, budget=arm.budget))
        first, second = _salts(arm)
        with closing(create_provider(settings, engine="sembench-embedded")) as provider:
            server = Server(self._model, provider, choose, self._config.block_size, self._config.max_output_tokens)
            server.keep_donor("donor", donor, self._donor_kv(donor), self._model.namespace_of(first))
            return server.serve("asking", tokens, reuse=arm.reuse, namespace=self._model.namespace_of(second))

    def _donor_kv(self, tokens: TokenIds) -> DonorKv:
        def compute() -> DonorKv:
            return self._engine.capture(self._engine.prefill(tokens, room=0).workspace, tokens.size)

        return self._memory.get(tokens, compute)

    def _log_probs(self, question: Question, prefill: Prefill) -> tuple[float, ...]:
        said = prefill.logits.log_softmax(-1)
        return tuple(float(said[token]) for token in self._first_tokens(question))

    def _first_tokens(self, question: Question) -> list[int]:
        return check_first_tokens(
            question, [int(self._model.encode_text(candidate)[0]) for candidate in question.candidates]
        )

    def _answer(self, question: Question, prefill: Prefill) -> str | None:
        if question.transform not in _ANSWERED:
            return None
        return self._model.decode(generate_greedily(self._engine, prefill, self._config.max_output_tokens).tokens)


def _salts(arm: PrivacyArm) -> tuple[str | None, str | None]:
    """Of who sent the donor, and of who asks."""
    if arm.salts == "none":
        return None, None
    return _DONOR, _DONOR if arm.salts == "one" else _ASKING


def _outcome(served: ServedPrefill) -> str:
    if served.outcome is None:
        return "off"
    return served.outcome.reason.value if served.outcome.reason else served.outcome.kind.value
