"""vLLM finds the plugin by its entry point: the connector needs no module path, and brings its scheduler along."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from semblend_vllm import SemBlendConnectorV1, SemBlendScheduler, plugin
from semblend_vllm.plugin import SCHEDULER, register

OWN_SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"


@pytest.fixture(scope="module")
def folder() -> Path:
    from semblend_core.testing import shallow_model_folder

    return shallow_model_folder()


def configured(folder: Path, transfer: dict[str, Any] | None, **options: Any) -> Any:
    """What vLLM makes of the arguments, plugins included."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    config = None if transfer is None else KVTransferConfig(kv_role="kv_both", **transfer)
    arguments = EngineArgs(model=str(folder), max_model_len=2048, kv_transfer_config=config, **options)
    return arguments.create_engine_config()


def connector_of(config: Any) -> Any:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    return KVConnectorFactory.get_connector_class(config.kv_transfer_config)


def test_the_entry_point_has_one_name_with_the_routes_so_that_one_allowlist_holds_for_both() -> None:
    (ours,) = [entry for entry in entry_points(group="vllm.general_plugins") if entry.name == "semblend"]
    assert ours.load() is register
    assert "semblend" in {entry.name for entry in entry_points(group="vllm.endpoint_plugins")}


def test_the_connectors_name_is_enough(folder: Path) -> None:
    config = configured(folder, {"kv_connector": "SemBlendConnectorV1"})
    assert connector_of(config) is SemBlendConnectorV1
    assert config.scheduler_config.scheduler_cls == SCHEDULER
    assert config.scheduler_config.get_scheduler_cls() is SemBlendScheduler


def test_a_scheduler_that_was_chosen_stays(folder: Path) -> None:
    config = configured(folder, {"kv_connector": "SemBlendConnectorV1"}, scheduler_cls=OWN_SCHEDULER)
    assert config.scheduler_config.scheduler_cls == OWN_SCHEDULER


def test_a_release_that_was_never_tested_keeps_its_scheduler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "installed_version", lambda: "0.99.0")
    config = configured(folder, {"kv_connector": "SemBlendConnectorV1"})
    assert config.scheduler_config.scheduler_cls is None


def test_what_fails_in_it_costs_nobody_their_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise AttributeError("another vLLM")

    monkeypatch.setattr(plugin, "_register", fails)
    register()
    assert "add kv_connector_module_path semblend_vllm" in caplog.text


@pytest.mark.parametrize("transfer", [None, {"kv_connector": "ExampleConnector"}], ids=["none", "another"])
def test_without_our_connector_nothing_changes(folder: Path, transfer: dict[str, Any] | None) -> None:
    assert configured(folder, transfer).scheduler_config.scheduler_cls is None


@pytest.mark.parametrize("home", ["semblend.integration.vllm.connector_v1", "synapse_kv_connector.semblend_connector"])
def test_the_public_packages_module_path_leads_to_ours_and_says_so(
    folder: Path, home: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "semblend_vllm"):
        config = configured(folder, {"kv_connector": "SemBlendConnectorV1", "kv_connector_module_path": home})
    assert connector_of(config) is SemBlendConnectorV1
    assert config.scheduler_config.scheduler_cls == SCHEDULER
    assert home in caplog.text


def test_our_module_path_works_as_before(folder: Path) -> None:
    transfer = {"kv_connector": "SemBlendConnectorV1", "kv_connector_module_path": "semblend_vllm"}
    assert connector_of(configured(folder, transfer)) is SemBlendConnectorV1


def test_registering_again_changes_nothing() -> None:
    from vllm.config import VllmConfig

    register()
    once = VllmConfig.__post_init__
    register()
    assert VllmConfig.__post_init__ is once
