"""Where SemBlend cannot work it says why, once, and the engine runs as if it were absent."""

from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from connector_sources import Api
from paper_engine import PaperEngine

from semblend_core.testing import passage
from semblend_trtllm import compat, preset, support
from semblend_trtllm.settings import TrtllmSettings

Make = Callable[..., PaperEngine]


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"enable_block_reuse": False}, "block reuse is off"),
        ({"tensor_parallel_size": 2}, "tensor parallelism"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"context_parallel_size": 2}, "context parallelism"),
        ({"speculative_config": object()}, "speculative decoding"),
        ({"max_beam_width": 4}, "beam search"),
        ({"host_cache_size": 2**30}, "host offloading"),
        ({"dtype": "fp8"}, "a KV cache of type fp8"),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(
    make_engine: Make, args: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        engine = make_engine(args=args)
    assert [reason in record.message for record in caplog.records] == [True]
    prompt = passage(2, 100)
    for _ in range(2):
        request = engine.serve(prompt, max_new=2)
        assert request.promised == 0
        engine.same_as_cold(request)
        engine.forget_cache()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"sliding_window": 512}, "sliding-window"),
        ({"kv_lora_rank": 512}, "MLA"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "several kinds of layers"),
    ],
)
def test_models_that_are_not_supported(config: dict[str, Any], reason: str) -> None:
    args: Any = type("Args", (), {"model": "m", "kv_cache_config": object()})
    assert reason in str(support.why_unsupported(args, config))
    assert support.why_unsupported(args, {"sliding_window": 512, "use_sliding_window": False}) is None


def test_a_pool_of_another_shape_means_discovery_only(
    api: Api, make_engine: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(args={"tokens_per_block": 64})
    engine.serve(passage(2, 400), max_new=1)
    engine.settle()
    engine.forget_cache()
    request = engine.serve(passage(2, 400), max_new=1)
    assert request.promised == 0
    engine.same_as_cold(request)
    assert "config.json makes it" in caplog.text


def test_a_layout_that_is_wrong_is_noticed_and_stops_loading(make_engine: Make) -> None:
    """Whole pages would be right all the same. But who reads a pool wrongly should not write to it."""
    engine = make_engine(trtllm_kv_layout="nhd")  # The pool is HND.
    texts = [passage(seed, 40) * 10 for seed in range(2, 10)]
    for text in texts:
        engine.serve(text, max_new=1)
        engine.settle()
    assert engine.scheduler.side.self_test.failed
    engine.forget_cache()
    assert engine.serve(texts[0] + passage(3, 40)).promised == 0


def test_partial_reuse_is_warned_of_with_the_fix(make_engine: Make, caplog: pytest.LogCaptureFixture) -> None:
    make_engine(args={"enable_partial_reuse": True})
    assert "enable_partial_reuse is on" in caplog.text


@pytest.mark.parametrize("version", ["1.1.0", "1.4.0", "1.4.0rc1", "1.20.0", "2.0.0", None])
def test_an_unknown_release_is_refused_unless_forced(version: str | None) -> None:
    reason = str(compat.why_refused(version, forced=False))
    assert "Install 1.2 or 1.3, or set SEMBLEND_TRTLLM_FORCE_VERSION=1" in reason
    assert "\n" not in reason
    assert compat.why_refused(version, forced=True) is None


@pytest.mark.parametrize("version", ["1.2.0", "1.2.0rc8", "1.3.0rc25", "1.3.1"])
def test_known_releases(version: str) -> None:
    assert compat.why_refused(version, forced=False) is None


def test_without_tensorrt_llm_the_package_imports_and_the_connector_says_what_to_install() -> None:
    import semblend_trtllm

    assert semblend_trtllm.__all__
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "tensorrt_llm"}
    for name in hidden:
        del sys.modules[name]
    try:
        with pytest.raises(ImportError, match=r"extra `trtllm` of semblend-trtllm"):
            compat.connector_api()
    finally:
        sys.modules.update(hidden)


def test_without_a_checkout_header_and_summary_say_what_was_skipped() -> None:
    this = f"{__file__}::test_known_releases"
    variables = {key: value for key, value in os.environ.items() if key != compat.SOURCES_VARIABLE}
    words = [sys.executable, "-m", "pytest", this, "-p", "no:cacheprovider"]
    said = subprocess.run(words, env=variables, capture_output=True, text=True, check=True, timeout=300).stdout
    header, _, rest = said.partition("collected ")
    for part in (header, rest):
        assert "SKIPPED: TensorRT-LLM's own connector classes and manager" in part
        assert compat.SOURCES_VARIABLE in part


@pytest.mark.skipif(not compat.source_checkouts(), reason="SKIPPED: no checkout of TensorRT-LLM is named")
@pytest.mark.parametrize("checkout", compat.source_checkouts() or [None], ids=str)
def test_the_preset_is_what_the_engines_own_class_takes(checkout: Path) -> None:
    """Read, not run: its module imports the compiled engine."""
    tree = ast.parse((checkout / "tensorrt_llm" / "llmapi" / "llm_args.py").read_text())
    (found,) = [node for node in tree.body if getattr(node, "name", None) == "KvCacheConnectorConfig"]
    assert isinstance(found, ast.ClassDef)
    annotated = [each.target for each in found.body if isinstance(each, ast.AnnAssign)]
    fields = {each.id for each in annotated if isinstance(each, ast.Name)}
    assert preset.CONNECTOR.keys() <= fields


def test_settings_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMBLEND_TRTLLM_KV_LAYOUT", "HND")
    monkeypatch.setenv("SEMBLEND_TRTLLM_STAGING_BYTES", "2GiB")
    found = TrtllmSettings.from_env()
    assert (found.kv_layout, found.staging_bytes) == ("hnd", 2**31)
    monkeypatch.setenv("SEMBLEND_TRTLLM_KV_LAYOUT", "sideways")
    with pytest.raises(ValueError, match="SEMBLEND_TRTLLM_KV_LAYOUT"):
        TrtllmSettings.from_env()


def test_a_provider_of_somebody_elses(make_engine: Make, api: Api) -> None:
    engine = make_engine(trtllm_provider="semblend_core.testing.reference_provider:ReferenceProvider")
    assert type(engine.scheduler.side.provider).__name__ == "ReferenceProvider"
    assert engine.serve(passage(2, 100), max_new=1).promised == 0
