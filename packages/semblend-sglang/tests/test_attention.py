"""Where rows can run: which attention stores first, or can be asked to, and which captured prefills leave it alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from semblend_sglang.compat.attention import (
    _replays_are_wanted,
    replays_rows,
    storing_first,
    why_attention_unsupported,
)
from semblend_sglang.compat.hooks import can_run_graph
from semblend_sglang.worker.sequences import MARK


def flashinfer(**fields: Any) -> Any:
    """Its two forms of attention: which one, is a flag. ``prefill_backend`` names kernels there."""
    return SimpleNamespace(use_paged=False, prefill_backend="fa2", **fields)


def runner_of(backend: Any, **fields: Any) -> Any:
    return SimpleNamespace(attn_backend=backend, prefill_attention_backend_str="flashinfer", **fields)


@pytest.mark.parametrize("split", [False, True], ids=["for all", "for prefill only"])
def test_flashinfer_stores_first_while_rows_run_and_is_left_as_it_was(split: bool) -> None:
    backend = flashinfer()
    runner = runner_of(SimpleNamespace(prefill_backend=backend, decode_backend=object()) if split else backend)
    assert why_attention_unsupported(runner) is None
    with storing_first(runner, has_rows=False):
        assert not backend.use_paged
    with storing_first(runner, has_rows=True):
        assert backend.use_paged
    assert not backend.use_paged
    with contextlib.suppress(RuntimeError), storing_first(runner, has_rows=True):
        raise RuntimeError("a forward that fails")
    assert not backend.use_paged


def test_flashinfer_that_has_no_such_form_any_more_is_declined() -> None:
    assert "use_paged" in str(why_attention_unsupported(runner_of(SimpleNamespace())))
    assert "use_paged" in str(why_attention_unsupported(runner_of(None)))


def test_flashinfer_over_latents_always_stores_first() -> None:
    assert why_attention_unsupported(runner_of(SimpleNamespace(), use_mla_backend=True)) is None


def test_other_attention_is_not_touched() -> None:
    backend = SimpleNamespace()
    with storing_first(runner_of(backend), has_rows=True):
        assert not vars(backend)


def graphs(name: str, *, latents: bool = False, places: int = 16) -> Any:
    model_runner = SimpleNamespace(use_mla_backend=latents)
    return SimpleNamespace(prefill_backend_name=name, model_runner=model_runner, max_bs=places)


@pytest.fixture(autouse=True)
def fresh_setting() -> Iterator[None]:
    _replays_are_wanted.cache_clear()
    yield
    _replays_are_wanted.cache_clear()


def test_a_batch_with_rows_runs_eagerly_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMBLEND_SGLANG_REPLAY_ROWS", "0")
    with_rows = SimpleNamespace(batch_size=4, **{MARK: object()})
    assert not can_run_graph(lambda *_: True, graphs("breakable"), with_rows)


@pytest.mark.parametrize(
    ("captured", "replays"),
    [
        (graphs("breakable"), True),
        (graphs("tc_piecewise"), True),
        (graphs("full"), False),
        (graphs("of tomorrow"), False),
        (graphs("breakable", latents=True), False),
        (graphs("breakable", places=3), False),
    ],
    ids=["breakable", "tc_piecewise", "full", "unknown", "latents", "too many sequences"],
)
def test_a_batch_with_rows_replays_where_attention_runs_between_graphs(captured: Any, replays: bool) -> None:
    asked: list[Any] = []

    def sglangs(runner: Any, forward_batch: Any) -> bool:
        asked.append(forward_batch)
        return True

    with_rows, without = (SimpleNamespace(batch_size=4, **{MARK: mark}) for mark in (object(), None))
    assert replays_rows(captured, with_rows) is replays
    assert can_run_graph(sglangs, captured, with_rows) is replays
    assert can_run_graph(sglangs, captured, without), "others are none of its business"
    assert asked == ([with_rows, without] if replays else [without]), "SGLang has the last word"


def test_sglang_may_still_say_no() -> None:
    with_rows = SimpleNamespace(batch_size=4, **{MARK: object()})
    assert not can_run_graph(lambda *_: False, graphs("breakable"), with_rows)
