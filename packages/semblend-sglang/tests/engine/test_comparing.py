"""What is compared: an answer behind the very KV it was served with, and the same answer behind exact KV."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_model import exact_numbers

from semblend_core import tenant_of_salt
from semblend_core.serving import Scored
from semblend_core.testing import passage

DOCUMENT = passage(2, 2400)
PROMPT = [*passage(3, 80), *DOCUMENT, *passage(4, 40)]
LAYOUTS = [
    pytest.param({"page_size": page, "core": core}, id=f"page-{page}-{core}")
    for page, core in ((1, "python"), (16, "rust"))
]


@pytest.fixture(params=LAYOUTS)
def rig(request: pytest.FixtureRequest, new_rig: Callable[..., Any]) -> Any:
    rig = new_rig(slots=32768, lookup_budget_ms=600_000.0, quality_share=1.0, **request.param)
    donate(rig)
    return rig


def donate(rig: Any, **who: str) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], f"donor-{who}", **who)


def ask(rig: Any, prompt: list[int] = PROMPT, **options: Any) -> Any:
    """Served with reuse, and answered by a few tokens. The KV of its prompt, as it was served."""
    request = rig.submit(prompt, "asks", output_tokens=5, **options)
    while request not in rig.running:
        rig.step()
    request.output_ids.extend([11, 12, 13, 14])
    numbers = rig.numbers_at(rig.slots_of(request)[: len(prompt)])
    rig.finish(request)
    return numbers


def go_on(rig: Any, meanwhile: Callable[[], object] = lambda: None) -> list[tuple[Any, list[Any]]]:
    """What SGLang's idle scheduler does: each order, and the KV that its prompt was computed behind."""
    done = []
    while (found := rig.side.comparing.next_order()) is not None:
        comparison, order = found
        asker = order.asker
        request = rig.submit(
            order.token_ids.tolist(), f"own-{len(done)}", wish="off", salt=asker.key.cache_salt, adapter=asker.adapter
        )
        if order.scored_from is not None:
            request.return_logprob, request.logprob_start_len = True, order.scored_from
        order.begin(request)
        while request not in rig.running:
            rig.step()
        numbers = rig.numbers_at(rig.slots_of(request)[: len(comparison.prompt)])
        rig.finish(request)
        done.append((order, numbers))
        meanwhile()
        scored = None if order.scored_from is None else scores(comparison.answer.size)
        rig.side.comparing.computed(comparison, order, scored)
    return done


def scores(positions: int) -> Scored:
    return Scored(np.arange(positions)[:, None], np.full((positions, 1), -0.1))


def results(rig: Any) -> dict[str, int]:
    news = rig.side.guard.news.take()
    found: dict[str, int] = {} if news is None else news["results"]
    return found


def settled(rig: Any) -> None:
    assert rig.side.guard.next() is None
    rig.check_accounts()
    rig.check_lineages()
    rig.side.check_integrity()


def test_the_same_answer_is_scored_behind_served_kv_and_behind_exact_kv(rig: Any) -> None:
    served = ask(rig)
    assert served != exact_numbers(PROMPT), "it was served approximately"
    outcomes = dict(rig.side.provider.stats().outcomes)
    done = go_on(rig)
    (behind_served, first), *pieces, (behind_exact, last) = done
    assert behind_served.token_ids.tolist() == behind_exact.token_ids.tolist() == [*PROMPT, 7, 11, 12, 13, 14]
    assert first == served
    assert last == exact_numbers(PROMPT)
    sizes = [order.token_ids.size for order, _ in pieces]
    assert len(sizes) == 3
    assert all(after - before <= 1024 for before, after in pairwise(sizes)), "nobody waits for more"
    assert results(rig) == {"compared": 1}
    assert dict(rig.side.provider.stats().outcomes) == outcomes, "nothing of it counts as traffic"
    assert rig.side.provider.stats().background_tokens > 2048
    settled(rig)


def test_only_the_answer_is_computed_behind_served_kv(rig: Any) -> None:
    ask(rig)
    comparison, order = rig.side.comparing.next_order()
    request = rig.submit(order.token_ids.tolist(), "own", wish="off")
    request.return_logprob, request.logprob_start_len = True, order.scored_from
    order.begin(request)
    rig.step()
    assert request.prefix_len >= len(PROMPT) - rig.page_size
    rig.finish(request)
    rig.side.comparing.computed(comparison, order, scores(5))
    assert comparison.reused is not None


def test_a_turn_that_goes_on_in_place_is_compared_too(rig: Any) -> None:
    ask(rig)
    go_on(rig)
    rig.evict(32768)
    donate(rig)
    ask(rig)
    rig.side.guard.clear()
    results(rig)
    longer = [*PROMPT, 7, 11, 12, 13, 14, *passage(9, 60)]
    served = ask(rig, longer)
    assert go_on(rig)[0][1] == served
    assert results(rig) == {"compared": 1}
    settled(rig)


def test_what_was_evicted_meanwhile_is_not_compared(rig: Any) -> None:
    ask(rig)
    rig.evict(32768)
    assert go_on(rig) == [], "nothing is computed for it"
    assert results(rig) == {"evicted": 1}
    settled(rig)


@pytest.mark.parametrize("exact", [1500, len(PROMPT)])
def test_what_has_become_exact_since_is_not_taken_for_what_was_served(rig: Any, exact: int) -> None:
    served = ask(rig)
    rig.serve([*PROMPT[:exact], *passage(40, 50)], "beside", wish="off")
    (_, first), *_, (_, last) = go_on(rig)
    assert first == served
    assert last == exact_numbers(PROMPT)
    assert results(rig) == {"compared": 1}
    settled(rig)


def test_of_two_who_were_served_the_same_prompt_each_is_compared(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask(rig)
    monkeypatch.setattr(rig.side.lineages.book, "_trusts", lambda lineage: False)
    monkeypatch.setattr(rig.side._fitting, "_spending", lambda plan: 4.0)
    second = ask(rig)
    assert first != second
    scored = [numbers for order, numbers in go_on(rig) if order.scored_from is not None]
    assert scored == [first, exact_numbers(PROMPT), second, exact_numbers(PROMPT)]
    assert results(rig) == {"compared": 2}
    settled(rig)


def test_without_a_share_nothing_is_kept_or_computed(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(slots=32768, lookup_budget_ms=600_000.0)
    donate(rig)
    ask(rig)
    assert not rig.side.comparing.has_work
    assert go_on(rig) == []


def test_a_request_without_reuse_is_not_compared(rig: Any) -> None:
    rig.serve(passage(50, 300), "cold")
    assert go_on(rig) == []


def test_one_that_was_retracted_is_not_compared_before_it_has_finished(rig: Any) -> None:
    request = rig.submit(PROMPT, "asks", output_tokens=5)
    while request not in rig.running:
        rig.step()
    rig.retract(request)
    assert not rig.side.comparing.has_work


@pytest.mark.parametrize("who", [{"salt": "a"}, {"adapter": "lora"}], ids=["salt", "adapter"])
def test_a_comparison_stays_with_whom_it_is_of(rig: Any, who: dict[str, str]) -> None:
    donate(rig, **who)
    served = ask(rig, **who)
    done = go_on(rig)
    assert done[0][1] == served
    assert results(rig) == {"compared": 1}
    assert len(rig.exact_match(PROMPT, done[0][0].asker.key)) >= len(PROMPT) - rig.page_size
    strangers = rig.serve(PROMPT, "stranger", wish="off")
    assert strangers.cached_tokens < 100


def test_a_purge_ends_it(rig: Any) -> None:
    donate(rig, salt="a")
    ask(rig, salt="a")
    assert rig.side.operator.show_between_rounds is not None
    go_on(rig, lambda: rig.side._tenants.begin_purge(tenant_of_salt("a")))
    assert results(rig) == {"forgotten": 1}
    settled(rig)


def test_new_weights_end_it(rig: Any) -> None:
    ask(rig)
    rig.update_weights()
    assert go_on(rig) == []
    assert results(rig) == {"forgotten": 1}
    settled(rig)


def test_a_flush_ends_it(rig: Any) -> None:
    ask(rig)
    assert rig.flush()
    assert go_on(rig) == []
    settled(rig)


def test_what_fails_in_it_reaches_no_request(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.side.guard, "wants", lambda lineage: 1 / 0)
    ask(rig)
    settled(rig)


def test_a_kind_that_strays_spends_more_and_is_declined_at_last(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    guard, rows = rig.side.guard, []
    monkeypatch.setattr(guard, "_settings", rig.settings)
    for number in range(60):
        rig.evict(32768)
        donate(rig)
        request = rig.submit([*passage(100 + number, 80), *DOCUMENT, *passage(4, 40)], f"r-{number}", output_tokens=2)
        while request not in rig.running:
            rig.step()
        life = rig.side.requests.of_request(request)
        rows.append(None if life.claim is None else life.claim.row_tokens)
        rig.finish(request)
        comparison = guard.next()
        if comparison is None:
            break
        comparison.reused = Scored(np.array([[1]]), np.array([[-0.1]]))
        guard.finish(comparison, Scored(np.array([[2]]), np.array([[-0.1]])))
    assert rows[-1] is None
    spent = list(dict.fromkeys(rows[:-1]))
    assert len(spent) == 3
    assert spent == sorted(spent)
    assert rig.side.provider.stats().declines["quality_target"] == 1


def test_the_dashboards_metrics_of_sglang_exist() -> None:
    import sglang.srt.observability.metrics_collector as collector

    assert '"sglang:time_to_first_token_seconds"' in Path(str(collector.__file__)).read_text()
