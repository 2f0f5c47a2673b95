"""What goes wrong costs a request its reuse, and nobody a wrong token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from paper_engine import PaperEngine, PaperRequest

from semblend_core import DeclineReason, TenantReport, as_token_ids
from semblend_core.testing import passage, wait_until

Make = Callable[..., PaperEngine]
DOCUMENT = passage(2, 400)


def with_donor(engine: PaperEngine) -> PaperEngine:
    engine.serve(DOCUMENT)
    engine.settle()
    engine.forget_cache()
    return engine


def declined(engine: PaperEngine, reason: DeclineReason) -> PaperRequest:
    request = engine.serve(DOCUMENT + passage(3, 40))
    assert request.promised == 0
    engine.same_as_cold(request)
    engine.settle()
    assert engine.scheduler.side.provider.stats().declines[reason] == 1
    return request


def test_a_donor_that_the_store_has_lost(make_engine: Make) -> None:
    engine = with_donor(make_engine())
    store = engine.worker.half.side._store
    with mock.patch.object(store, "acquire", return_value=None):
        declined(engine, DeclineReason.DONOR_EVICTED)


def test_a_donor_of_other_tokens_is_never_loaded(make_engine: Make) -> None:
    """Hashes of beginnings may collide: what counts is the tokens that lie beside the KV."""
    engine = with_donor(make_engine())
    prefixes = engine.scheduler.side.keeper.donors.prefixes
    found = list(prefixes.holders(engine.scheduler.side.follow.namespace().digest, _ids(DOCUMENT)))
    other = [*passage(9, 32), *DOCUMENT[32:], *passage(3, 40)]
    with mock.patch.object(type(prefixes), "holders", return_value=iter(found)):
        request = engine.serve(other)
    assert request.promised == 0
    engine.same_as_cold(request)
    assert engine.scheduler.side.provider.stats().declines[DeclineReason.DONOR_CORRUPT] == 1


def test_a_lookup_that_raises(make_engine: Make) -> None:
    engine = with_donor(make_engine())
    broken = mock.Mock(lookup=mock.Mock(side_effect=RuntimeError("injected")))
    with mock.patch.object(engine.scheduler.side.seeker, "provider", broken):
        declined(engine, DeclineReason.INTERNAL_ERROR)


def test_a_capture_that_fails_makes_no_donor(make_engine: Make) -> None:
    engine = make_engine()
    with mock.patch.object(engine.worker.half.side, "_capture", side_effect=RuntimeError("injected")):
        engine.serve(DOCUMENT)
    engine.settle()
    assert engine.scheduler.side.provider.stats().donors == 0


def test_kv_that_was_promised_and_does_not_land_stops_the_step(make_engine: Make) -> None:
    """TensorRT-LLM cannot be told, and would compute with whatever is in the pages."""
    engine = with_donor(make_engine())
    engine.add(DOCUMENT + passage(3, 40))
    broken = mock.Mock(side_effect=RuntimeError("injected: the device is gone"))
    with (
        mock.patch.object(engine.worker.half.side._memory, "scatter", broken),
        pytest.raises(RuntimeError, match=r"did not land.*load_failed"),
    ):
        engine.step()
    assert engine.scheduler.side.provider.stats().declines[DeclineReason.LOAD_FAILED] == 1


def test_a_donor_on_disk_is_declined_and_the_request_does_not_wait(
    make_engine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = {"store_host_bytes": 0, "store_disk_bytes": 2**28, "store_disk_path": str(tmp_path / "donors")}
    engine = with_donor(make_engine(**budget))
    store, side = engine.worker.half.side._store, engine.scheduler.side
    namespace = side.follow.namespace()
    (name,) = [name for name, _ in side.keeper.donors.prefixes.holders(namespace.digest, _ids(DOCUMENT))]
    wait_until(lambda: store.tier_of(namespace, name[1]) == "disk", "the donor is on disk")
    with mock.patch.object(store._loader, "_read"):  # So that the read cannot have ended by chance.
        declined(engine, DeclineReason.DONOR_ON_DISK)


def test_weights_without_an_identity_are_another_model_in_the_next_process(make_engine: Make, tmp_path: Path) -> None:
    """No files tell them apart, so what a former process left on disk is not taken for theirs."""
    budget = {"store_disk_bytes": 2**28, "store_disk_path": str(tmp_path / "donors")}
    with_donor(make_engine(**budget)).close()
    engine = make_engine(**budget)
    request = engine.serve(DOCUMENT + passage(3, 40))
    assert request.promised == 0
    engine.same_as_cold(request)


def test_orders_of_a_step_that_never_ran_are_not_lost_and_keep_nothing(make_engine: Make) -> None:
    engine = with_donor(make_engine())
    request = engine.add(DOCUMENT + passage(3, 40))
    half, bind = engine.worker.half, engine.worker.half.bind
    empty = type(engine.scheduler.side.step(None))()
    with mock.patch.object(half, "bind", lambda work: (bind(work), bind(empty))):
        engine.step()
    assert request.promised == 384
    while not request.is_over:
        engine.step()
    engine.same_as_cold(request)
    engine.settle()
    assert not engine.scheduler.side.keeper.captures.any_coming


def test_fewer_tokens_honoured_than_promised_are_loaded_to_there(make_engine: Make) -> None:
    """As releases behind 1.3 may do, which say so on the request."""
    engine = with_donor(make_engine())
    request = engine.add(DOCUMENT + passage(3, 40))
    ask = engine.manager.get_num_new_matched_tokens

    def honour_less(asked: Any, found: int) -> int:
        promised = ask(asked, found)
        asked.py_num_connector_matched_tokens = 200 if promised else 0
        _told_less(engine.manager, asked.request_id, 200)
        return min(promised, 200)

    with mock.patch.object(engine.manager, "get_num_new_matched_tokens", honour_less):
        engine.step()
    while not request.is_over:
        engine.step()
    engine.same_as_cold(request)
    engine.settle()
    assert engine.scheduler.side.provider.stats().confirmed_tokens == 200


def test_a_purged_tenant_leaves_nothing(make_engine: Make) -> None:
    engine = with_donor(make_engine())
    side = engine.scheduler.side
    tenant = side.follow.namespace().salt_digest
    assert side.show_tenant(tenant).donors == 1
    side.purge_tenant(tenant)
    assert side.show_tenant(tenant) == TenantReport()
    assert engine.serve(DOCUMENT + passage(3, 40)).promised == 0


def _told_less(manager: Any, request_id: int, tokens: int) -> None:
    if hasattr(manager, "scheduler_output_manager"):
        manager.scheduler_output_manager.external_loads[request_id] = tokens
    else:
        manager._promised[request_id] = tokens


def _ids(tokens: list[int]) -> Any:
    return as_token_ids(tokens)
