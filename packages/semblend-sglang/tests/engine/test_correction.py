"""Inside the forward, what rows have shown corrects the rest of their spans, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from toy_model import HEAD, exact_numbers

from semblend_core import DeclineReason, SelfTestState
from semblend_core.kv import MeanShiftCorrection, PagedMeanShift
from semblend_core.testing import passage
from semblend_sglang.compat import hooks
from semblend_sglang.worker import correcting

PARTS = [passage(seed, 150) for seed in range(10, 14)]
DONORS = {f"donor-{number}": [*passage(20 + number, 40 + number), *part] for number, part in enumerate(PARTS)}


@pytest.fixture(params=[(1, "python"), (16, "rust")], ids=["page-1-python", "page-16-rust"])
def rig(request: pytest.FixtureRequest, new_rig: Callable[..., Any]) -> Any:
    page_size, core = request.param
    return new_rig(page_size=page_size, core=core, quality_tier="balanced", probe="never", lookup_budget_ms=600_000.0)


def serve_donors(rig: Any) -> None:
    for name, prompt in DONORS.items():
        rig.serve(prompt, name)


def prompt_of(order: tuple[int, ...], seed: int) -> list[int]:
    return [token for n in order for token in (*passage(seed + n, 9), *PARTS[n])] + passage(seed + 9, 30)


def check_correction(rig: Any, request: Any) -> None:
    """The toy's values are numbers. Those that were moved are their donors', as core corrects them by the rows'."""
    claim, slots = rig.side.requests.of_request(request).claim, rig.slots_of(request)
    prompt = list(request.origin_input_ids)
    assert claim.correction is not None
    assert len(claim.spans) >= 2
    numbers = torch.zeros(claim.end)
    for span in claim.spans:
        numbers[span.target_start : span.target_end] = torch.tensor(numbers_of_donor(prompt, span))
    keys = torch.stack([rig._key_of(token) for token in prompt[: claim.end]])
    moved = rig.rotation.rotate(keys, np.arange(claim.end))[:, None], numbers[:, None, None].expand(-1, 1, HEAD)
    rows = np.concatenate([np.arange(*run) for run in claim.rows])
    held = rig.pool.v_buffer[1][slots[: claim.end]]
    expected_keys, expected = (part.clone() for part in moved)
    expected[rows] = held[rows]
    correction = MeanShiftCorrection(claim.correction, claim.spans, rows, rig.rotation, moved)
    correction.apply(1, expected_keys, expected, *(part[rows] for part in moved))
    for span in claim.spans:
        others = np.setdiff1d(np.arange(span.target_start, span.target_end), rows)
        assert 0 < others.size <= span.length - 4
        assert float((expected - moved[1])[others].abs().max()) > 100, "nothing to see"
        torch.testing.assert_close(held[others], expected[others], rtol=0, atol=2.0)  # Numbers are up to a million.
    assert rig.key_error(slots, list(range(len(slots)))) < 1e-4
    assert rig.tokens_at(slots) == prompt[: len(slots)]


def numbers_of_donor(prompt: list[int], span: Any) -> list[int]:
    wanted = prompt[span.target_start : span.target_end]
    donor = next(each for each in DONORS.values() if each[span.donor_start : span.donor_end] == wanted)
    return exact_numbers(donor)[span.donor_start : span.donor_end]


@pytest.mark.parametrize("stores_by_itself", [False, True], ids=["stored by the pool", "stored by the model"])
def test_the_rest_of_each_span_moves_along_with_its_rows(rig: Any, stores_by_itself: bool) -> None:
    rig.stores_by_itself = stores_by_itself
    serve_donors(rig)
    request = rig.submit(prompt_of((2, 0, 3, 1), 30), "asked")
    rig.step()
    check_correction(rig, request)
    rig.finish(request)
    rig.check_accounts()
    for name, prompt in DONORS.items():
        slots = rig.exact_match(prompt, rig.tree._tree_key(request))
        assert rig.numbers_at(slots) == exact_numbers(prompt[: len(slots)]), f"{name} was changed"


def test_requests_of_one_batch_are_corrected_each_by_its_own_rows(rig: Any) -> None:
    serve_donors(rig)
    asked = [rig.submit(prompt_of(order, 30 + 20 * n), f"{n}") for n, order in enumerate(((2, 0), (3, 1, 0), (1, 2)))]
    rig.submit(passage(70, 100), "cold one between")
    rig.step()
    for request in asked:
        check_correction(rig, request)


def test_a_tail_in_pieces_is_computed_behind_what_the_first_piece_corrected(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(chunk=384, quality_tier="balanced", probe="never", lookup_budget_ms=600_000.0)
    serve_donors(rig)
    request = rig.submit([*prompt_of((2, 0), 30), *passage(90, 700)], "asked")
    rig.step()
    assert rig.chunked is request
    check_correction(rig, request)
    before = rig.pool.v_buffer[1].clone()
    own = rig.slots_of(request)
    while rig.chunked is not None:
        rig.step()
    assert torch.equal(rig.pool.v_buffer[1][own], before[own]), "it is corrected once"


def test_a_request_that_is_retracted_is_computed_without_a_trace_of_it(rig: Any) -> None:
    serve_donors(rig)
    request = rig.submit(prompt_of((2, 0, 3), 30), "asked", wish={"mode": "on", "capture": False})
    rig.step()
    check_correction(rig, request)
    rig.retract(request)
    rig.evict(rig.slots)
    rig.step()
    known = list(request.origin_input_ids + request.output_ids)[:-1]
    assert rig.numbers_at(rig.slots_of(request)[: len(known)]) == exact_numbers(known)
    rig.check_accounts()


def fails(correction: PagedMeanShift, layer: int) -> None:
    raise RuntimeError("a fault that the test asked for")


def is_over(rig: Any, caplog: pytest.LogCaptureFixture) -> bool:
    """Whether reuse has ended for good, was said so, and everybody is still served."""
    assert rig.serve(prompt_of((1, 2), 60), "afterwards").cached_tokens == 0
    rig.check_accounts()
    said = any("only looks from now on" in record.message for record in caplog.records if record.levelname == "ERROR")
    return said and rig.side.provider.stats().self_test is SelfTestState.FAILED


def counts_nothing(rig: Any) -> bool:
    """Whether what was moved, and not corrected, is no reuse but a decline."""
    stats = rig.side.provider.stats()
    return stats.confirmed_tokens == 0 and stats.declines.get(DeclineReason.LOAD_FAILED) == 1


def test_a_correction_that_fails_counts_no_reuse_and_ends_it(
    rig: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(PagedMeanShift, "apply", fails)
    serve_donors(rig)
    rig.serve(prompt_of((2, 0), 30), "asked")
    assert counts_nothing(rig)
    assert is_over(rig, caplog)


def test_where_memory_for_a_correction_is_short_that_prompt_alone_is_computed(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_donors(rig)
    with monkeypatch.context() as patched:

        def has_no_memory(*_: Any) -> None:
            raise torch.OutOfMemoryError("a fault that the test asked for")

        patched.setattr(hooks, "correction_of", has_no_memory)
        request = rig.submit(prompt_of((2, 0), 30), "asked", wish={"mode": "on", "capture": False})
        rig.step()
        known = list(request.origin_input_ids)
        assert rig.numbers_at(rig.slots_of(request)[: len(known)]) == exact_numbers(known)
    assert rig.side.provider.stats().declines[DeclineReason.ALLOCATION_FAILED] == 1
    assert rig.serve(prompt_of((1, 2), 60), "afterwards").cached_tokens > 0
    rig.check_accounts()


def test_who_needs_no_correction_is_counted_beside_one_whose_correction_failed(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_donors(rig)
    asked = [rig.submit(prompt_of(order, 30 + 20 * n), f"{n}") for n, order in enumerate(((2, 0), (3,)))]
    monkeypatch.setattr(PagedMeanShift, "apply", fails)
    rig.step()
    lives = [rig.side.requests.of_request(request) for request in asked]
    assert [life.claim.correction is not None for life in lives] == [True, False]
    assert rig.side.provider.stats().confirmed_tokens == lives[1].claim.reused_tokens
    for request in asked:
        rig.finish(request)
    assert rig.side.provider.stats().declines[DeclineReason.LOAD_FAILED] == 1
    rig.check_accounts()


def test_a_forward_that_stores_unseen_ends_reuse(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    rig._say_stored = lambda queries: None
    serve_donors(rig)
    rig.serve(prompt_of((2, 0), 30), "asked")
    assert counts_nothing(rig)
    assert is_over(rig, caplog)


def test_what_cannot_be_corrected_is_computed(
    rig: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    serve_donors(rig)

    def cannot(*arguments: Any) -> None:
        raise MemoryError("no room for what lay at the rows")

    monkeypatch.setattr(rig.side.pool, "correction", cannot)
    request = rig.submit(prompt_of((2, 0), 30), "asked")
    rig.step()
    assert rig.numbers_at(rig.slots_of(request)) == exact_numbers(request.origin_input_ids)
    rig.finish(request)
    assert is_over(rig, caplog)


def test_outside_of_a_forward_nothing_listens(rig: Any) -> None:
    serve_donors(rig)
    rig.serve(prompt_of((2, 0), 30), "asked")
    assert correcting._under_way is None
