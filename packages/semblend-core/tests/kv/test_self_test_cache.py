"""A result is kept for exactly what it was found for, and anything doubtful is tested again."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `gpu`")

import torch

from semblend_core import Plan, TokenIds
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.rotation import Rotation
from semblend_core.kv.self_test import SelfTestCache, SelfTestIdentity, SelfTestReport, run_self_test

IDENTITY = SelfTestIdentity(
    engine="toy",
    engine_version="1.2",
    model="toy-model",
    revision="r1",
    device="cpu",
    dtype="float32",
    kv_layout="nhd",
)


class ToyEngine:
    """K and V are the token, whatever the position: reuse is exact, and the rotation turns nothing."""

    vocabulary, max_tokens, span_alignment = 1000, 4096, 1
    rotation = Rotation(4, 0, 4, False, np.zeros(2))

    def __init__(
        self, identity: SelfTestIdentity = IDENTITY, *, broken: float = 0, error: Exception | None = None
    ) -> None:
        self.identity = identity
        self.broken = broken
        self.error = error
        self.prefills = 0

    def prefill(self, token_ids: TokenIds) -> tuple[DonorKv, torch.Tensor]:
        self.prefills += 1
        kv = torch.from_numpy(np.array(token_ids, dtype=np.float32)).reshape(1, -1, 1, 1).expand(2, -1, 1, 4)
        return DonorKv(kv.clone(), kv.clone()), kv[0, :, 0, 0].cumsum(0)

    def prefill_with(
        self, token_ids: TokenIds, plan: Plan, donors: Mapping[str, DonorKv]
    ) -> tuple[DonorKv, torch.Tensor]:
        if self.error is not None:
            raise self.error
        kv, logits = self.prefill(token_ids)
        return DonorKv(kv.keys + self.broken, kv.values), logits


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.mark.parametrize("broken", [False, True])
def test_success_and_failure_are_both_remembered_until_forced(tmp_path: Path, broken: bool) -> None:
    cache = SelfTestCache(tmp_path / "not" / "there yet")
    engine = ToyEngine(broken=broken)
    first = run_self_test(engine, cache)
    assert first.mode == ("discovery_only" if broken else "materialize")
    spent = engine.prefills
    assert spent > 0
    assert run_self_test(engine, cache) == first
    assert engine.prefills == spent
    run_self_test(engine, cache, force=True)
    assert engine.prefills == 2 * spent


def test_a_mended_engine_passes_when_forced_and_stays_passed(tmp_path: Path) -> None:
    cache = SelfTestCache(tmp_path)
    run_self_test(ToyEngine(broken=True), cache)
    assert run_self_test(ToyEngine(), cache).mode == "discovery_only"
    assert run_self_test(ToyEngine(), cache, force=True).mode == "materialize"
    assert run_self_test(ToyEngine(broken=True), cache).mode == "materialize"


def test_what_could_not_be_tested_is_not_remembered(tmp_path: Path) -> None:
    cache = SelfTestCache(tmp_path / "folder")
    assert run_self_test(ToyEngine(error=torch.OutOfMemoryError("no memory")), cache).mode == "discovery_only"
    assert not cache.folder.exists()
    assert run_self_test(ToyEngine(), cache).mode == "materialize"
    run_self_test(ToyEngine(error=torch.OutOfMemoryError("no memory")), cache, force=True)
    assert run_self_test(ToyEngine(), cache).mode == "materialize", "nor does it undo what was found"


def test_a_number_that_is_none_is_not_remembered(tmp_path: Path) -> None:
    cache = SelfTestCache(tmp_path / "folder")
    assert run_self_test(ToyEngine(broken=float("nan")), cache).mode == "discovery_only"
    assert not cache.folder.exists()


def test_a_remembered_failure_is_an_error_in_the_log_at_every_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = SelfTestCache(tmp_path)
    for when in ("found now", "found at an earlier start"):
        caplog.clear()
        report = run_self_test(ToyEngine(broken=True), cache)
        (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
        assert report.reason in record.getMessage()
        assert when in record.getMessage()


def test_a_remembered_success_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert run_self_test(ToyEngine(), SelfTestCache(tmp_path)).mode == "materialize"
    assert not caplog.records


@pytest.mark.parametrize(
    "field", ["engine", "engine_version", "model", "revision", "device", "dtype", "kv_layout", "semblend_version"]
)
def test_every_part_of_the_identity_counts(tmp_path: Path, field: str) -> None:
    cache = SelfTestCache(tmp_path)
    run_self_test(ToyEngine(), cache)
    other = ToyEngine(replace(IDENTITY, **{field: "other"}))
    run_self_test(other, cache)
    assert other.prefills > 0
    assert len(files(tmp_path)) == 2


def _tampered(stored: dict[str, object]) -> str:
    return json.dumps({**stored, "mode": "materialize", "reason": None})


def _overruled(stored: dict[str, object]) -> str:
    checks = [{**check, "passed": True} for check in stored["checks"]]
    return json.dumps({**stored, "checks": checks, "mode": "materialize"})


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: "",
        lambda stored: "{",
        lambda stored: "[]",
        lambda stored: "null",
        lambda stored: json.dumps({**stored, "format": 0}),
        lambda stored: json.dumps({**stored, "checks": [{"name": "x"}]}),
        _tampered,
        _overruled,
    ],
)
def test_a_damaged_file_means_testing_again(tmp_path: Path, damage: object) -> None:
    cache = SelfTestCache(tmp_path)
    run_self_test(ToyEngine(broken=True), cache)
    (file,) = files(tmp_path)
    file.write_text(damage(json.loads(file.read_text())))
    engine = ToyEngine()
    assert run_self_test(engine, cache).mode == "materialize"
    assert engine.prefills > 0
    assert SelfTestReport.from_json(json.loads(file.read_text())).mode == "materialize", "and the file is mended"


def test_a_result_for_something_else_under_this_name_is_not_believed(tmp_path: Path) -> None:
    cache = SelfTestCache(tmp_path)
    run_self_test(ToyEngine(replace(IDENTITY, model="other")), cache)
    (file,) = files(tmp_path)
    file.rename(tmp_path / f"{IDENTITY.digest}.json")
    assert cache.load(IDENTITY) is None


def test_a_folder_that_cannot_be_written_costs_the_memory_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert run_self_test(ToyEngine(), SelfTestCache(blocked)).mode == "materialize"


def test_nothing_half_written_stays_behind(tmp_path: Path) -> None:
    run_self_test(ToyEngine(), SelfTestCache(tmp_path))
    assert [file.suffix for file in files(tmp_path)] == [".json"]


def test_the_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert SelfTestCache.default().folder == tmp_path / "semblend" / "self-test"
