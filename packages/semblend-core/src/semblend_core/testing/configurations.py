"""What holds in every configuration of every engine, as tests of what a program found there (needs pytest).

Subclass ``ConfigurationTests`` and give the fixture ``found``: what the engine's program wrote, which has asked

- ``answers``: by ``documents``, one or four, the prompt with reuse (``reused``; ``confirmed`` tokens), without
  (``cold``), without behind the reuse (``off``), and by another tenant (``other``);
- ``moved``: how far each layer's KV is from a cold one, in ``parts`` of the pool;
- ``faults``: what is answered while something is ``broken``, and what was counted ``before`` it, ``between`` and
  ``after`` it was mended; ``reason``: why that is declined;
- ``batch``: several prompts ``together`` and each ``alone``;
- ``churn``: many have come and gone, some of whom reused something (``confirmed``); what of the pool is ``free``, or
  can be freed, before and after.

An answer has its ``tokens``, the ``logprobs`` of each step's top tokens, ``prompt_tokens`` and ``cached_tokens``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from semblend_core.testing.for_adapters import divergence

ONE, FOUR = DOCUMENTS = ("one document", "four documents")
LEAST_REUSED = {ONE: 0.5, FOUR: 0.4}
"""Of a prompt. Of several short documents the tier may compute half."""
SAME = 1e-4
"""In nats: of the same computation in another order. What is reused differs by more."""


class ConfigurationTests:
    most_divergence: ClassVar[Mapping[str, float]]
    """By documents, of an answer with reuse: mean KL in nats. Models with random weights are nearly deaf to what they
    read, so that it is to be less than what keys give that were not turned."""
    opening: ClassVar[float] = 0.0
    """Share of a prompt that the engine's own cache may have of it: what stands before the first relocated token."""

    @pytest.fixture
    def found(self) -> dict[str, Any]:
        raise NotImplementedError("give a fixture `found`: what the program of this configuration wrote")

    @pytest.mark.parametrize("documents", DOCUMENTS)
    def test_prompts_are_reused(self, found: dict[str, Any], documents: str) -> None:
        answers = found["answers"][documents]
        cold, reused = answers["cold"], answers["reused"]
        assert found["proved"], "the self-test has not passed"
        assert reused["cached_tokens"] == answers["confirmed"] > LEAST_REUSED[documents] * cold["prompt_tokens"]
        assert divergence(cold["logprobs"], reused["logprobs"]) < self.most_divergence[documents]

    def test_one_document_is_answered_as_cold(self, found: dict[str, Any]) -> None:
        answers = found["answers"][ONE]
        assert answers["reused"]["tokens"] == answers["cold"]["tokens"]

    def test_what_was_moved_is_what_would_have_been_computed(self, found: dict[str, Any]) -> None:
        """Layer 0 has seen nothing but tokens and positions. Behind it, what stands before a token counts a little."""
        moved = found["moved"]
        assert moved["confirmed"] > 0.5 * moved["tokens"]
        for part, by_layer in moved["parts"].items():
            assert by_layer[0] < 1e-4, part
            assert max(by_layer) < 0.15, f"{part}: turned wrongly, keys differ by more than their size"

    @pytest.mark.parametrize("documents", DOCUMENTS)
    def test_without_reuse_nothing_approximate_is_found(self, found: dict[str, Any], documents: str) -> None:
        answers = found["answers"][documents]
        assert answers["off"]["cached_tokens"] <= self.opening * answers["cold"]["prompt_tokens"]
        assert_same(answers["cold"], answers["off"])

    @pytest.mark.parametrize("documents", DOCUMENTS)
    def test_another_tenant_finds_nothing(self, found: dict[str, Any], documents: str) -> None:
        answers = found["answers"][documents]
        assert answers["other"]["cached_tokens"] == 0
        assert_same(answers["cold"], answers["other"])

    def test_what_fails_is_computed(self, found: dict[str, Any]) -> None:
        cold = found["answers"][FOUR]["cold"]
        assert found["faults"]
        for fault in found["faults"].values():
            before, between, reason = fault["before"], fault["between"], fault["reason"]
            assert fault["broken"]["cached_tokens"] == 0
            assert_same(cold, fault["broken"])
            assert between["declines"][reason] == before["declines"].get(reason, 0) + 1
            assert fault["after"]["confirmed"] > between["confirmed"] == before["confirmed"]

    def test_several_are_served_at_once(self, found: dict[str, Any]) -> None:
        batch = found["batch"]
        assert batch["confirmed"] > LEAST_REUSED[FOUR] * sum(each["prompt_tokens"] for each in batch["alone"])
        for alone, together in zip(batch["alone"], batch["together"], strict=True):
            assert divergence(alone["logprobs"], together["logprobs"]) < self.most_divergence[FOUR]

    def test_nothing_of_the_pool_is_lost(self, found: dict[str, Any]) -> None:
        churn = found["churn"]
        before, after = churn["free"]
        assert churn["confirmed"] > 0
        assert before == after


class WithoutCorrection:
    """Besides, where KV is not corrected. ``balanced``: what was counted before one document, behind it, and behind
    four, in the tier that corrects."""

    def test_what_would_need_a_correction_is_left_to_the_fast_tier(self, found: dict[str, Any]) -> None:
        before, one, four = found["balanced"]
        assert one["confirmed"] > before["confirmed"]
        assert four["confirmed"] == one["confirmed"]
        assert four["declines"]["quality_tier"] == one["declines"].get("quality_tier", 0) + 1


class WithoutImages:
    """Besides, of prompts with ``images``: one that is ``asked`` and the same ``cold``; one that could be a ``donor``,
    and a prompt ``after`` it. ``before``, ``between`` and ``at_the_end``: what was counted."""

    def test_a_prompt_with_an_image_is_served_cold_and_counted(self, found: dict[str, Any]) -> None:
        shown = found["images"]
        before, between = (shown[when]["declines"].get("unsupported_request", 0) for when in ("before", "between"))
        assert shown["asked"]["tokens"] == shown["cold"]["tokens"]
        assert shown["asked"]["cached_tokens"] == 0
        assert shown["between"]["confirmed"] == shown["before"]["confirmed"]
        assert between > before

    def test_a_prompt_with_an_image_is_no_donor(self, found: dict[str, Any]) -> None:
        shown = found["images"]
        assert shown["donor"]["prompt_tokens"] > 400
        assert shown["after"]["cached_tokens"] == 0
        assert shown["at_the_end"]["confirmed"] == shown["before"]["confirmed"]


def assert_same(cold: dict[str, Any], other: dict[str, Any]) -> None:
    assert other["tokens"] == cold["tokens"]
    for ours, theirs in zip(cold["logprobs"], other["logprobs"], strict=True):
        assert max(abs(value - theirs[token]) for token, value in ours.items() if token in theirs) < SAME
