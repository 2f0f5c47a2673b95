"""The self-test passes a sound engine and catches each kind of fault by the check that is there for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `reference`")
pytest.importorskip("transformers", reason="needs the extra `reference`")

import torch
import transformers

from semblend_core import Plan, TokenIds
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.self_test import SelfTestReport, run_self_test
from semblend_core.reference import ReferenceEngine, ReferenceSubject
from semblend_core.reference.attention import Forward

Answer = tuple[DonorKv, "torch.Tensor"]


def small_engine(dtype: str = "float32", **fields: Any) -> ReferenceEngine:
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=500,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        **{"max_position_embeddings": 8192, "initializer_range": 0.2, **fields},
    )
    return ReferenceEngine.of(transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)))


def failed(report: SelfTestReport) -> set[str]:
    return {check.name.split(",")[0] for check in report.checks if not check.passed}


class Turned:
    """A rotation with a fault: keys are turned by something else than the shift."""

    def __init__(self, true_rotation: Any, fault: Any) -> None:
        self._true_rotation, self._fault = true_rotation, fault

    def rotate(self, keys: torch.Tensor, shift: int) -> torch.Tensor:
        return self._true_rotation.rotate(keys, self._fault(shift))


def with_rotation_fault(fault: Any) -> ReferenceSubject:
    engine = small_engine()
    engine.rotation = Turned(engine.rotation, fault)
    return ReferenceSubject(engine)


def with_layer_fault(fault: Callable[[int, int], int]) -> ReferenceSubject:
    """An engine that turns keys by ``fault(layer, shift)``, though its rotation is the model's."""
    engine = small_engine()
    rotate, layers = engine._rotate, cycle(range(engine.geometry.layers))  # A span is turned layer by layer.
    engine._rotate = lambda keys, shift: rotate(keys, fault(next(layers), shift))  # type: ignore[method-assign]
    return ReferenceSubject(engine)


class ChangesDonors(ReferenceSubject):
    def prefill_with(self, token_ids: TokenIds, plan: Plan, donors: Mapping[str, DonorKv]) -> Answer:
        return super().prefill_with(token_ids, plan, {name: self.changed(kv) for name, kv in donors.items()})

    def changed(self, kv: DonorKv) -> DonorKv:
        raise NotImplementedError


class SwapsValueHeads(ChangesDonors):
    def changed(self, kv: DonorKv) -> DonorKv:
        return DonorKv(kv.keys, kv.values.flip(2))


class TakesValuesForKeys(ChangesDonors):
    def changed(self, kv: DonorKv) -> DonorKv:
        return DonorKv(kv.values, kv.keys)


class RoundsInStorage(ChangesDonors):
    def changed(self, kv: DonorKv) -> DonorKv:
        return DonorKv(kv.keys.bfloat16().float(), kv.values.bfloat16().float())


class DropsRows(ReferenceSubject):
    """Computes the gaps only: rows inside spans keep the relocated KV."""

    def prefill_with(self, token_ids: TokenIds, plan: Plan, donors: Mapping[str, DonorKv]) -> Answer:
        gaps = Plan.over(plan.request_id, plan.prompt_tokens, plan.exact_prefix_tokens, plan.spans)
        return super().prefill_with(token_ids, gaps, donors)


def test_a_sound_engine_passes_every_check_and_says_what_it_measured() -> None:
    report = run_self_test(ReferenceSubject(small_engine()))
    assert (report.mode, report.reason, failed(report)) == ("materialize", None, set())
    names = [check.name for check in report.checks]
    assert "relocated_keys, shift 4096" in names
    assert "relocated_keys, shift -29" in names
    assert {"relocated_layers, shift -29", "relocated_layers, shift 4096"} <= set(names)
    assert {"in_place_round_trip", "moved_round_trip", "relocated_values", "sparse_rows"} <= set(names)
    assert {"full_recompute_logits", "full_recompute_kv", "in_place_logits"} <= set(names)
    assert all(check.measured <= check.tolerance and check.detail for check in report.checks)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_types_pass_within_their_own_tolerance(dtype: str) -> None:
    report = run_self_test(ReferenceSubject(small_engine(dtype=dtype)))
    assert report.mode == "materialize", report.reason
    assert report.identity.dtype == dtype


def test_a_report_survives_json() -> None:
    report = run_self_test(ReferenceSubject(small_engine()))
    assert SelfTestReport.from_json(json.loads(json.dumps(report.as_json()))) == report


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_flipped_rotation_is_caught_by_computed_keys_alone(dtype: str) -> None:
    engine = small_engine(dtype=dtype)
    engine.rotation = Turned(engine.rotation, lambda shift: -shift)
    report = run_self_test(ReferenceSubject(engine))
    assert report.mode == "discovery_only"
    assert failed(report) == {"relocated_keys"}, "there and back again is no proof of the direction"
    assert "relocated_keys, shift 1" in report.reason


def test_keys_moved_one_position_too_far_are_caught() -> None:
    report = run_self_test(with_rotation_fault(lambda shift: shift + 1))
    assert {"relocated_keys", "moved_round_trip"} <= failed(report)


def test_keys_that_were_not_turned_at_all_are_caught() -> None:
    assert failed(run_self_test(with_rotation_fault(lambda shift: 0))) == {"relocated_keys"}


@pytest.mark.parametrize(
    "fault",
    [
        lambda layer, shift: shift if layer == 0 else 0,
        lambda layer, shift: -shift if layer == 2 else shift,
    ],
    ids=["layers behind the first not turned", "last layer the wrong way"],
)
def test_layers_that_are_turned_otherwise_than_the_first_are_caught(fault: Callable[[int, int], int]) -> None:
    report = run_self_test(with_layer_fault(fault))
    wrong = [check for check in report.checks if check.name.startswith("relocated_layers")]
    assert len(wrong) == 5
    assert not any(check.passed for check in wrong)
    assert failed(report) == {"relocated_layers"}


def test_a_rotation_that_is_not_the_engines_is_caught() -> None:
    class SaysAnother(ReferenceSubject):
        rotation = small_engine(rope_theta=500.0).rotation

    assert failed(run_self_test(SaysAnother(small_engine()))) == {"relocated_layers"}


def test_a_rotation_that_is_wrong_far_away_only_is_caught() -> None:
    report = run_self_test(with_rotation_fault(lambda shift: shift if shift < 2048 else shift - 1))
    assert [check.name for check in report.checks if not check.passed] == ["relocated_keys, shift 4096"]


def test_swapped_values_are_caught() -> None:
    assert {"in_place_round_trip", "relocated_values"} <= failed(run_self_test(SwapsValueHeads(small_engine())))
    report = run_self_test(TakesValuesForKeys(small_engine()))
    assert {"in_place_round_trip", "relocated_values", "relocated_keys", "in_place_logits"} <= failed(report)


def test_storage_that_loses_bits_is_caught() -> None:
    assert "in_place_round_trip" in failed(run_self_test(RoundsInStorage(small_engine())))


def test_rows_that_are_not_computed_are_caught() -> None:
    assert {"full_recompute_logits", "full_recompute_kv"} <= failed(run_self_test(DropsRows(small_engine())))


def test_rows_that_see_what_comes_after_them_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(self: Forward, start: int, end: int, columns: int, group: int) -> torch.Tensor:
        return torch.ones((group * (end - start), columns), dtype=torch.bool)

    monkeypatch.setattr(Forward, "_mask", blind)
    assert "sparse_rows" in failed(run_self_test(ReferenceSubject(small_engine())))


def test_rows_computed_one_position_off_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ReferenceEngine._run

    def one_off(self: ReferenceEngine, forward: Forward, tokens: torch.Tensor, logits: str) -> torch.Tensor | None:
        if len(forward.positions) == forward.positions.end:
            return run(self, forward, tokens, logits)
        rotary = self.model.model.rotary_emb
        hook = rotary.register_forward_pre_hook(
            lambda module, args, kwargs: (args, {**kwargs, "position_ids": kwargs["position_ids"] + 1}),
            with_kwargs=True,
        )
        try:
            return run(self, forward, tokens, logits)
        finally:
            hook.remove()

    engine = small_engine()
    monkeypatch.setattr(ReferenceEngine, "_run", one_off)
    assert {"sparse_rows", "relocated_keys"} <= failed(run_self_test(ReferenceSubject(engine)))


class Raises(ReferenceSubject):
    def prefill_with(self, token_ids: TokenIds, plan: Plan, donors: Mapping[str, DonorKv]) -> Answer:
        raise RuntimeError("no block left")


class ReturnsTooLittle(ReferenceSubject):
    def prefill_with(self, token_ids: TokenIds, plan: Plan, donors: Mapping[str, DonorKv]) -> Answer:
        kv, logits = super().prefill_with(token_ids, plan, donors)
        return DonorKv(kv.keys[:, :-1], kv.values[:, :-1]), logits


class ReturnsNonsense(ReferenceSubject):
    def prefill(self, token_ids: TokenIds) -> Answer:
        kv, logits = super().prefill(token_ids)
        return kv, logits * float("nan")


class ReturnsNonsenseValues(ReferenceSubject):
    def prefill_with(self, token_ids: TokenIds, plan: Plan, donors: Mapping[str, DonorKv]) -> Answer:
        kv, logits = super().prefill_with(token_ids, plan, donors)
        return DonorKv(kv.keys, kv.values * float("nan")), logits


class HasNoIdentity(ReferenceSubject):
    @property
    def identity(self) -> Any:
        raise LookupError("the engine has no version")


class TakesShortPromptsOnly(ReferenceSubject):
    max_tokens = 100


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        (Raises, "RuntimeError: no block left"),
        (ReturnsTooLittle, "came back with the KV of"),
        (ReturnsNonsense, "in_place_logits: the error is nan"),
        (ReturnsNonsenseValues, "in_place_round_trip: the error is nan"),
        (ReturnsNonsenseValues, "sparse_rows: the error is nan"),
        (HasNoIdentity, "LookupError: the engine has no version"),
        (TakesShortPromptsOnly, "the engine takes 100"),
    ],
)
def test_a_subject_that_fails_ends_in_discovery_and_never_in_an_exception(
    subject: type[ReferenceSubject], why: str
) -> None:
    report = run_self_test(subject(small_engine()))
    assert report.mode == "discovery_only"
    assert why in report.reason
    json.dumps(report.as_json(), allow_nan=False)


class OnlyWholeBlocks(ReferenceSubject):
    """As an engine that places KV in blocks: any other target is refused."""

    span_alignment = 32

    def prefill_with(self, token_ids: TokenIds, plan: Plan, donors: Mapping[str, DonorKv]) -> Answer:
        assert all(span.target_start % 32 == 0 and span.target_end % 32 == 0 for span in plan.spans)
        return super().prefill_with(token_ids, plan, donors)


def test_an_engine_that_places_whole_blocks_is_tested_with_aligned_spans() -> None:
    report = run_self_test(OnlyWholeBlocks(small_engine()))
    assert report.mode == "materialize", report.reason


def identity_of(**fields: Any) -> Any:
    return ReferenceSubject(small_engine(**fields)).identity


def test_another_config_is_another_identity() -> None:
    plain = identity_of()
    assert plain == identity_of()
    for changed in ({"rope_theta": 5e5}, {"max_position_embeddings": 4096}, {"rms_norm_eps": 1e-5}):
        assert identity_of(**changed).revision != plain.revision
    assert ReferenceSubject(small_engine(), revision="r2").identity.revision != plain.revision


def test_where_a_config_came_from_and_who_wrote_it_is_not_part_of_its_digest() -> None:
    subject = ReferenceSubject(small_engine())
    revision = subject.identity.revision
    config = subject.engine.model.config
    config._name_or_path, config.transformers_version = "/elsewhere", "4.0.0"
    assert (subject.identity.model, subject.identity.revision) == ("/elsewhere", revision)


def test_the_identity_names_what_computes() -> None:
    identity = identity_of()
    for package in (torch, transformers):
        assert f"{package.__name__} {package.__version__}" in identity.engine_version
    assert "triton" in identity.engine_version
    assert identity.device.startswith("cpu ")
    shorter = ReferenceEngine.of(small_engine().model, max_tokens=1024)
    assert ReferenceSubject(shorter).identity != identity, "it is not tested as far"
