"""When an idle scheduler of SGLang's computes requests of our own, and which."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from semblend_sglang.compat import background
from semblend_sglang.scheduler.orders import Asker, Order
from semblend_sglang.scheduler.requests import TreeKey

ASKER = Asker(TreeKey(None), None, None)


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """With work in the background."""
    monkeypatch.setattr(background, "why_never_idle", lambda server_args: None)
    work = SimpleNamespace(has_work=True)
    return SimpleNamespace(
        server_args=None,
        tree_cache=SimpleNamespace(semblend=SimpleNamespace(background=work, comparing=work)),
        weight_updater=SimpleNamespace(offload_tags=set()),
        is_fully_idle=lambda: True,
        max_req_input_len=100,
        handle_generate_request=lambda request: ordered.append(request.rid),
        ordered=(ordered := []),
    )


def test_nothing_is_computed_while_memory_is_given_back(
    scheduler: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[Any] = []
    monkeypatch.setattr(background, "_compute_piece", lambda *args: computed.append(args) or True)
    scheduler.weight_updater.offload_tags.add("weights")
    assert background.on_idle(lambda scheduler: "SGLang's own", scheduler) == "SGLang's own"
    assert not computed
    scheduler.weight_updater.offload_tags.clear()
    background.on_idle(lambda scheduler: None, scheduler)
    assert len(computed) == 1


def test_what_is_longer_than_any_prompt_is_not_ordered(scheduler: SimpleNamespace) -> None:
    """A prompt that filled the context, with its answer."""
    assert background._order(scheduler, Order(np.arange(100, dtype=np.int32), ASKER, 90)) is None
    assert scheduler.ordered == []
    assert background._order(scheduler, Order(np.arange(99, dtype=np.int32), ASKER, 90)) in scheduler.ordered
