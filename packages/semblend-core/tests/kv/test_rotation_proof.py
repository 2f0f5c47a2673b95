"""The self-test tells a model's own rotation from every other, whatever the model's biases and the pool's type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from semblend_core.contract import SelfTestResult, SelfTestState
from semblend_core.kv.equal_tokens import FEWEST_PAIRS, MOST_PAIRS, SHORTEST_MOVE, Agreement, EqualTokens
from semblend_core.kv.layout import narrow
from semblend_core.kv.rotation import Rotation, turn_pairs
from semblend_core.kv.rotation_proof import (
    PROMPTS_BETWEEN_RETRIES,
    PROMPTS_FOR_NO,
    PROMPTS_FOR_YES_IN_DOUBT,
    RotationProof,
)

HEADS, DIM, VOCABULARY = 2, 64, 400
CONFIG = {"model_type": "qwen2", "head_dim": DIM, "rope_theta": 1e6, "max_position_embeddings": 32768}
TRUE = Rotation.from_config(CONFIG)
STANDING = replace(TRUE, frequencies=TRUE.frequencies * 0)
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, *FP8]


def configured(**fields: object) -> Rotation:
    return Rotation.from_config({**CONFIG, **fields})


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
WRONG = {
    "no rotation": STANDING,
    "other theta": configured(rope_theta=10_000.0),
    "theta slightly off": configured(rope_theta=900_000.0),
    "other pairs": replace(TRUE, interleaved=True),
    "other direction": replace(TRUE, frequencies=-TRUE.frequencies),
    "half of the components": configured(partial_rotary_factor=0.5),
    "linear scaling": configured(rope_scaling={"rope_type": "linear", "factor": 2.0}),
    "llama3 scaling": configured(rope_scaling={"rope_type": "llama3", **LLAMA3}),
    "YaRN": configured(rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
}


class FirstLayer:
    """K and V as a model's first layer stores them: of the token alone, K turned by its position, rounded to a type.

    ``bias``: the size of K's bias in the slower half of the bands, where what belongs to a token has size 1.
    """

    def __init__(
        self, rotation: Rotation, dtype: torch.dtype, *, bias: float = 0.0, noise: float = 0.0, scale: float = 1.0
    ) -> None:
        source = torch.Generator().manual_seed(1)
        self._scale = scale
        self.rotation, self.dtype, self._noise = rotation, dtype, noise
        self._keys, self._values = (torch.randn(VOCABULARY, HEADS, DIM, generator=source) for _ in "kv")
        slow = torch.arange(DIM) % (DIM // 2) >= DIM // 4
        self._keys += bias * slow * torch.randn(HEADS, DIM, generator=source)
        self._values += bias

    def store(self, token_ids: np.ndarray) -> tuple[Tensor, Tensor]:
        positions = np.arange(token_ids.size)
        computed = (self._with_noise(part[torch.from_numpy(token_ids)]) for part in (self._keys, self._values))
        # Engines compute in a type of their own, and round once more to fp8.
        computing = torch.bfloat16 if self.dtype in FP8 else self.dtype
        keys, values = (part.to(computing) for part in computed)
        cos, sin = (table.to(computing).float() for table in self.rotation.cos_sin(positions))
        turned = self._turn(keys.float(), cos, sin).to(computing)
        return narrow(turned / self._scale, self.dtype), narrow(values / self._scale, self.dtype)

    def _turn(self, keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        size = self.rotation.size
        turning = turn_pairs(keys[..., :size], cos[:, None], sin[:, None], interleaved=self.rotation.interleaved)
        return torch.cat((turning, keys[..., size:]), dim=-1)

    def _with_noise(self, exact: Tensor) -> Tensor:
        """Arithmetic that depends on the batch, such as an activation's scale."""
        source = torch.Generator().manual_seed(2)
        return exact + self._noise * exact.std() * torch.randn(exact.shape, generator=source)


def prompt(seed: int, tokens: int = 300) -> np.ndarray:
    """Some tokens often, most of them seldom, as in text."""
    return np.random.default_rng(seed).zipf(1.3, tokens) % VOCABULARY


def short_prompts(count: int) -> list[np.ndarray]:
    return [np.random.default_rng(seed).integers(0, 16, 40) for seed in range(count)]


def after(proof: RotationProof, model: FirstLayer, prompts: Iterable[np.ndarray]) -> SelfTestResult:
    for token_ids in prompts:
        pairs = proof.pairs_wanted(token_ids)
        if pairs is not None:
            keys, values = model.store(token_ids)
            proof.judge(pairs, (keys[pairs.first], keys[pairs.later]), (values[pairs.first], values[pairs.later]))
    return proof.result


def several(count: int = PROMPTS_FOR_NO, tokens: int = 300, seed: int = 0) -> list[np.ndarray]:
    return [prompt(seed + number, tokens) for number in range(count)]


# --- Telling rotation from no rotation -------------------------------------------------------------------------------


PASSING = [(dtype, bias) for dtype in DTYPES for bias in (0.0, 5.0, 50.0, 200.0) if dtype not in FP8 or bias <= 5]
"""Types that keep enough of keys with such biases."""


@pytest.mark.parametrize(("dtype", "bias"), PASSING, ids=str)
def test_one_prompt_is_enough_to_pass(dtype: torch.dtype, bias: float) -> None:
    result = after(RotationProof(TRUE), FirstLayer(TRUE, dtype, bias=bias), [prompt(0)])
    assert result.passed
    assert "agrees with computed K" in result.says


def test_a_model_whose_k_is_mostly_bias_in_slow_bands_passes() -> None:
    """In one figure for all of K, turning or not turning makes no difference beyond bfloat16."""
    model, token_ids = FirstLayer(TRUE, torch.bfloat16, bias=200.0), prompt(0)
    near = np.arange(0, 290)
    keys, _ = model.store(np.zeros(300, np.intp))
    moved_by_eight = (keys[near + 8] - keys[near]).float().norm() / keys.float().norm()
    assert moved_by_eight < 0.03
    assert after(RotationProof(TRUE), model, [token_ids]).passed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [0.0, 200.0])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_model_that_turns_otherwise_fails_for_good(dtype: torch.dtype, bias: float, wrong: str) -> None:
    result = after(RotationProof(TRUE), FirstLayer(WRONG[wrong], dtype, bias=bias), several(tokens=2000))
    assert result.failed
    assert result.final
    assert "relocated K of layer 0 differs" in result.says
    assert ("does not depend on its position" in result.says) is (wrong == "no rotation")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_rotation_fails_on_a_model_that_turns(dtype: torch.dtype, wrong: str) -> None:
    assert after(RotationProof(WRONG[wrong]), FirstLayer(TRUE, dtype, bias=20.0), several(tokens=2000)).failed


@settings(deadline=None, max_examples=40)
@given(
    theta=st.floats(2_000.0, 1e7),
    factor=st.floats(0.3, 3.0).filter(lambda factor: abs(factor - 1) > 0.2),
    kind=st.sampled_from(PASSING),
    seed=st.integers(0, 1000),
)
def test_whatever_theta_the_true_one_passes_and_another_fails(
    theta: float, factor: float, kind: tuple[torch.dtype, float], seed: int
) -> None:
    dtype, bias = kind
    true, other = configured(rope_theta=theta), configured(rope_theta=theta * factor)
    model = FirstLayer(true, dtype, bias=bias)
    assert after(RotationProof(true), model, [prompt(seed)]).passed
    assert after(RotationProof(other), model, several(seed=seed)).failed


def test_only_the_rotated_part_of_a_latent_cache_turns() -> None:
    rotation = Rotation.from_config({"model_type": "deepseek_v3", "kv_lora_rank": 96, "qk_rope_head_dim": 32})
    token_ids = prompt(0)
    latent = torch.randn(VOCABULARY, 1, 128)[torch.from_numpy(token_ids)]
    keys = rotation.rotate(latent, np.arange(token_ids.size))
    pairs = EqualTokens.of(token_ids)
    assert pairs is not None
    at_pairs = (keys[pairs.first], keys[pairs.later])
    assert Agreement.between(pairs, at_pairs, None, rotation).agrees
    elsewhere = replace(rotation, start=0)
    assert Agreement.between(pairs, at_pairs, None, elsewhere).plainly_disagrees


def test_angles_that_an_engine_rounds_to_float32_pass_far_into_a_prompt() -> None:
    positions = np.random.default_rng(0).integers(0, 100_000, (2, 64))
    pairs = EqualTokens(positions.min(0), positions.max(0))
    computed = torch.randn(64, HEADS, DIM)
    rounded = []
    for places in (pairs.first, pairs.later):
        angles = torch.from_numpy(places).float()[:, None] * torch.from_numpy(TRUE.frequencies).float()
        cos, sin = (torch.cat((part, part), -1)[:, None] for part in (angles.cos(), angles.sin()))
        crossed = torch.cat((-computed[..., DIM // 2 :], computed[..., : DIM // 2]), -1)
        rounded.append(computed * cos + crossed * sin)
    assert Agreement.between(pairs, (rounded[0], rounded[1]), None, TRUE).agrees


# --- V ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [0.0, 3.0])
def test_values_of_other_tokens_fail(dtype: torch.dtype, bias: float) -> None:
    model, proof = FirstLayer(TRUE, dtype, bias=bias), RotationProof(TRUE)
    for token_ids in several():
        keys, values = model.store(token_ids)
        pairs = EqualTokens.of(token_ids)
        assert pairs is not None
        shifted = values.roll(1, dims=0)
        proof.judge(pairs, (keys[pairs.first], keys[pairs.later]), (shifted[pairs.first], shifted[pairs.later]))
    assert proof.result.failed
    assert proof.result.final
    assert "V of layer 0" in proof.result.says


def test_an_engine_whose_arithmetic_depends_on_the_batch_passes() -> None:
    """Its V says by how much: such as with activations that are quantised by the largest of a batch."""
    noisy = FirstLayer(TRUE, torch.bfloat16, noise=0.02)
    assert after(RotationProof(TRUE), noisy, [prompt(0)]).passed
    turns_otherwise = FirstLayer(WRONG["linear scaling"], torch.bfloat16, noise=0.02)
    assert after(RotationProof(TRUE), turns_otherwise, several()).failed


def test_numbers_that_are_none_fail() -> None:
    token_ids = prompt(0)
    pairs, proof = EqualTokens.of(token_ids), RotationProof(TRUE)
    assert pairs is not None
    keys = torch.full((pairs.first.size, HEADS, DIM), torch.nan)
    for _ in range(PROMPTS_FOR_NO):
        proof.judge(pairs, (keys, keys), None)
    assert proof.result.failed


def test_k_that_is_zero_proves_nothing() -> None:
    pairs, proof = EqualTokens.of(prompt(0)), RotationProof(TRUE)
    assert pairs is not None
    zeros = torch.zeros(pairs.first.size, HEADS, DIM)
    assert proof.judge(pairs, (zeros, zeros), (zeros, zeros)) is None


# --- Several prompts -------------------------------------------------------------------------------------------------

RIGHT, UNLIKE = FirstLayer(TRUE, torch.bfloat16), FirstLayer(STANDING, torch.bfloat16)
NEARLY = FirstLayer(replace(TRUE, frequencies=TRUE.frequencies * 1.0002), torch.bfloat16)
"""Off by more than rounding, and not by much."""


def new_proof() -> RotationProof:
    return RotationProof(TRUE)


def test_a_no_takes_several_prompts() -> None:
    proof = new_proof()
    assert after(proof, UNLIKE, several(PROMPTS_FOR_NO - 1)).state is SelfTestState.PENDING
    assert after(proof, UNLIKE, [prompt(9)]).failed


def test_one_odd_prompt_costs_a_few_more_and_no_failure() -> None:
    proof = new_proof()
    after(proof, UNLIKE, [prompt(0)])
    assert after(proof, RIGHT, several(2, seed=1)).state is SelfTestState.PENDING
    assert after(proof, RIGHT, [prompt(3)]).passed


def test_a_plain_no_is_final_and_asks_for_nothing_more() -> None:
    proof = new_proof()
    assert after(proof, UNLIKE, several()).final
    assert all(proof.pairs_wanted(token_ids) is None for token_ids in several(PROMPTS_BETWEEN_RETRIES * 2))


def test_a_no_that_is_not_plain_is_tried_again_now_and_then() -> None:
    proof = new_proof()
    failed = after(proof, NEARLY, several())
    assert failed.failed
    assert not failed.final
    looked_at = [number for number in range(4 * PROMPTS_BETWEEN_RETRIES) if proof.pairs_wanted(prompt(number))]
    assert len(looked_at) == 4
    assert after(proof, RIGHT, several(3 * PROMPTS_BETWEEN_RETRIES)).passed


def test_short_prompts_do_not_outweigh_a_long_one_that_disagrees() -> None:
    """A wrong scaling shows over long distances only."""
    proof, model = new_proof(), FirstLayer(WRONG["YaRN"], torch.bfloat16)
    after(proof, model, [prompt(0, 2000)])
    assert after(proof, model, short_prompts(5)).state is SelfTestState.PENDING
    assert after(proof, model, several(2, tokens=2000, seed=1)).failed


def test_one_odd_long_prompt_does_not_stop_shorter_ones_for_ever() -> None:
    proof = new_proof()
    after(proof, UNLIKE, [prompt(0, 2000)])
    assert after(proof, RIGHT, several(PROMPTS_FOR_YES_IN_DOUBT - 1, seed=1)).state is SelfTestState.PENDING
    assert after(proof, RIGHT, [prompt(50)]).passed


def test_a_yes_in_doubt_is_taken_back_by_the_distances_that_were_in_doubt() -> None:
    proof, model = new_proof(), FirstLayer(WRONG["YaRN"], torch.bfloat16)
    after(proof, model, [prompt(0, 2000)])
    assert after(proof, model, short_prompts(4 * PROMPTS_FOR_YES_IN_DOUBT)).passed
    assert after(proof, model, several(2, tokens=2000, seed=1)).failed


def test_what_passed_on_short_prompts_is_looked_at_again_on_long_ones() -> None:
    proof, model = new_proof(), FirstLayer(WRONG["YaRN"], torch.bfloat16)
    assert after(proof, model, short_prompts(3)).passed
    assert proof.pairs_wanted(prompt(4, 100)) is None
    assert after(proof, model, several(3, tokens=2000)).failed


def test_prompts_that_reach_no_farther_are_not_read_after_it_has_passed() -> None:
    proof = new_proof()
    after(proof, RIGHT, [prompt(0)])
    assert all(proof.pairs_wanted(token_ids) is None for token_ids in several(20))


def test_a_result_is_told_once() -> None:
    proof, told = new_proof(), []
    for token_ids in several(3 * PROMPTS_BETWEEN_RETRIES):
        pairs = proof.pairs_wanted(token_ids)
        if pairs is not None:
            keys, values = NEARLY.store(token_ids)
            at_pairs = [(part[pairs.first], part[pairs.later]) for part in (keys, values)]
            told.append(proof.judge(pairs, at_pairs[0], at_pairs[1]))
    assert [result.state for result in told if result is not None] == [SelfTestState.FAILED]


# --- Pairs -----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), max_size=400))
def test_pairs_hold_one_token_each_and_lie_apart(token_ids: list[int]) -> None:
    pairs, ids = EqualTokens.of(token_ids), np.array(token_ids, np.intp)
    spans = [np.flatnonzero(ids == token) for token in np.unique(ids)]
    far = sum(places[-1] - places[0] >= SHORTEST_MOVE for places in spans)
    if pairs is None:
        assert far < FEWEST_PAIRS
        return
    assert pairs.first.size == min(far, MOST_PAIRS)
    assert (ids[pairs.first] == ids[pairs.later]).all()
    assert np.unique(ids[pairs.first]).size == pairs.first.size
    assert pairs.distances.min() >= SHORTEST_MOVE
    assert pairs.distances.max() == max(places[-1] - places[0] for places in spans)


def test_of_many_pairs_some_of_all_distances_are_read() -> None:
    pairs = EqualTokens.of(np.tile(np.arange(1000), 2)[::-1].repeat(2))
    assert pairs is not None
    assert pairs.first.size == MOST_PAIRS


@pytest.mark.parametrize("token_ids", [np.arange(300), np.zeros(300, int), np.zeros(0, int), np.arange(300) // 8])
def test_a_prompt_without_distant_repeats_proves_nothing(token_ids: np.ndarray) -> None:
    assert EqualTokens.of(token_ids) is None
