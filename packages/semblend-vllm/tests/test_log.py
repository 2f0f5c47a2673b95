"""What SemBlend says at INFO is seen in vLLM's log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from semblend_vllm.compat.log import join_engines_log

OURS = ("semblend_core", "semblend_vllm")


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def engines_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    """As vLLM sets it up: a logger of its own."""
    heard, engine = Heard(), logging.getLogger("vllm")
    monkeypatch.setattr(engine, "handlers", [heard])
    monkeypatch.setattr(engine, "propagate", False)
    level = engine.level
    engine.setLevel(logging.INFO)
    yield heard
    engine.setLevel(level)
    for name in OURS:
        logging.getLogger(name).handlers = []
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_info_lines_of_both_packages_are_in_it_once(engines_log: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    join_engines_log()
    join_engines_log()  # Both halves of a connector may live in one process.
    logging.getLogger("semblend_core.provider").info("from core")
    logging.getLogger("semblend_vllm.connector").info("from the adapter")
    logging.getLogger("semblend_core.provider").debug("too much")
    assert engines_log.lines == ["from core", "from the adapter"]


def test_a_log_that_somebody_has_set_up_is_left_as_it_is(engines_log: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Heard()
    monkeypatch.setattr(logging.getLogger(), "handlers", [root])
    join_engines_log()
    logging.getLogger("semblend_core.provider").warning("to the root")
    assert (root.lines, engines_log.lines) == (["to the root"], [])
