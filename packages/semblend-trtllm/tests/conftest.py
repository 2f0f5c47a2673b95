"""Real sources where ``SEMBLEND_TRTLLM_SRC`` names checkouts, our own stand-in always; the header says which."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semblend_trtllm import compat

sys.path.insert(0, str(Path(__file__).with_name("helpers")))

from connector_sources import Api, load
from paper_engine import PaperEngine, arguments, small_model

CHECKOUTS = compat.source_checkouts()
SKIPPED = (
    "SKIPPED: TensorRT-LLM's own connector classes and manager. Name checkouts of 1.2 and of 1.3 or later in "
    f"{compat.SOURCES_VARIABLE}, separated as in PATH"
)
GENERATIONS = [
    pytest.param(None, id="own"),
    *(pytest.param(each, id=str(compat.version_of(each))) for each in CHECKOUTS),
    *([] if CHECKOUTS else [pytest.param(None, id="real", marks=pytest.mark.skip(reason=SKIPPED))]),
]


def pytest_report_header() -> str:
    if not CHECKOUTS:
        return SKIPPED
    return "TensorRT-LLM's own connector API: " + ", ".join(str(compat.version_of(each)) for each in CHECKOUTS)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not CHECKOUTS:
        terminalreporter.write_line(SKIPPED, yellow=True)


@pytest.fixture(scope="session")
def model() -> Any:
    return small_model()


@pytest.fixture(params=GENERATIONS)
def api(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Api:
    def set_module(name: str, module: Any) -> None:
        monkeypatch.setitem(sys.modules, name, module)

    return load(request.param, set_module)


@pytest.fixture
def make_engine(
    api: Api, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., PaperEngine]]:
    """An engine with SemBlend's settings as keywords, and ``args`` for TensorRT-LLM's arguments."""
    made: list[PaperEngine] = []

    def make(args: dict[str, Any] | None = None, engine: dict[str, Any] | None = None, **settings: Any) -> PaperEngine:
        chosen = {
            "sharing": "all",
            "lookup_budget_ms": 60_000.0,
            "quality_tier": "fast",
            "store_host_bytes": 256 * 2**20,
            **settings,
        }
        for name, value in chosen.items():
            monkeypatch.setenv(f"SEMBLEND_{name.upper()}", str(value))
        folder = tmp_path / f"model-{len(made)}"
        folder.mkdir()
        made.append(PaperEngine(api, model, arguments(folder, model, **(args or {})), **(engine or {})))
        return made[-1]

    yield make
    for each in made:
        each.close()
