"""What an offline run records of its items, and of providers that fail or cheat."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from sembench.identity import identify
from sembench.offline.providers import ExactBlockProvider, ProviderOptions, open_provider
from sembench.offline.replay import OfflineRun, replay_offline
from sembench.offline.result import build_offline_result
from sembench.schema import InputError, ManifestItem, Result
from sembench.tokenization import Tokenizer
from semblend_core import DonorOffer, LookupRequest, LookupResult, OfferResult, Plan, SemanticLookupProvider, Span

Distinct = Callable[[int, int], str]
MakeItem = Callable[..., ManifestItem]


def core() -> SemanticLookupProvider:
    return open_provider("core", ProviderOptions())[0]


def result_of(items: list[ManifestItem], run: OfflineRun, *, shared_pool: bool = False) -> Result:
    return build_offline_result(identify("offline", None, len(items)), {}, items, run, 16, shared_pool=shared_pool)


def four_items(make_item: MakeItem, distinct: Distinct) -> list[ManifestItem]:
    """Figures of core with blocks of 16, worked out by hand.

    moved: 16 new tokens, 256 of the donor from its position 8 on, 16 new: 18 blocks, 16 eligible, none exact.
    repeat: the donor of 200 tokens again: 12 blocks, all exact and all eligible, and no prefix left to gain.
    mixed: 192 tokens of one donor, then 160 of another, on the block grid of both: 22 blocks, all exact, all eligible.
    control: nothing shared: 10 blocks.
    """
    moved, repeat = distinct(0, 300), distinct(1000, 200)
    first, second = distinct(2000, 192), distinct(3000, 160)
    return [
        make_item("moved", [moved], distinct(5000, 16) + moved[8:264] + distinct(5100, 16), "instruction_variant"),
        make_item("repeat", [repeat], repeat, "exact_repeat"),
        make_item("mixed", [first, second], first + second, "multi_donor_composite"),
        make_item("control", [distinct(6000, 160)], distinct(7000, 160), "negative_control"),
    ]


def test_records_hold_the_figures_worked_out_by_hand(
    letters: Tokenizer, make_item: MakeItem, distinct: Distinct
) -> None:
    run = replay_offline(four_items(make_item, distinct), letters, core())
    figures = [
        (r.prompt_tokens, r.total_blocks, r.exact_blocks, r.exact_prefix_tokens, r.candidate_blocks, r.eligible_blocks)
        for r in run.records
    ]
    assert figures == [
        (288, 18, 0, 0, 16, 16),
        (200, 12, 12, 192, 12, 12),
        (352, 22, 22, 192, 22, 22),
        (160, 10, 0, 0, 0, 0),
    ]
    assert [r.eligible_beyond_exact_blocks for r in run.records] == [16, 0, 0, 0]
    assert [(r.spans, r.donors, r.outcome, r.decline_reason) for r in run.records] == [
        (1, 1, "planned", None),
        (1, 1, "planned", None),
        (2, 2, "planned", None),
        (0, 0, "declined", "no_spans"),
    ]
    assert all(r.lookup_us is not None and r.lookup_us > 0 for r in run.records)
    assert run.offers == {"registered": 5}


def test_the_aggregate_is_made_of_the_records(letters: Tokenizer, make_item: MakeItem, distinct: Distinct) -> None:
    items = four_items(make_item, distinct)
    result = result_of(items, replay_offline(items, letters, core()))
    total = result.aggregate
    assert _parts(total.exact_block_hit_rate) == (34, 62)
    assert _parts(total.semantic_candidate_block_rate) == (50, 62)
    assert _parts(total.semantic_eligible_block_rate) == (50, 62)
    assert total.semantic_eligible_lift == pytest.approx(16 / 62)
    assert _parts(total.semantic_eligible_rate_by_request) == (1, 4)
    assert _parts(total.negative_control_semantic_eligible_rate) == (0, 10)
    assert _parts(total.negative_control_semantic_eligible_rate_by_request) == (0, 1)
    assert total.decline_reasons == {"no_spans": 1}
    assert total.outcomes == {"planned": 3, "declined": 1}
    moved = result.by_transform["instruction_variant"].aggregate
    assert _parts(moved.semantic_eligible_block_rate) == (16, 18)


def test_what_only_a_backend_can_confirm_stays_null(
    letters: Tokenizer, make_item: MakeItem, distinct: Distinct
) -> None:
    items = four_items(make_item, distinct)
    result = result_of(items, replay_offline(items, letters, core()))
    total = result.aggregate
    assert total.backend_confirmed_block_rate is None
    assert total.backend_confirmed_lift is None
    assert total.negative_control_backend_confirmed_rate is None
    assert total.materialized_reuse_rate is None
    assert total.materialized_tokens is None
    assert result.paired is None
    assert all(record.confirmed_tokens is None and record.ttft_ms is None for record in result.requests)


def test_no_item_sees_the_donors_of_another(letters: Tokenizer, make_item: MakeItem, distinct: Distinct) -> None:
    document = distinct(0, 320)
    items = [make_item("one", [document], document), make_item("two", [distinct(900, 320)], document)]
    provider = core()
    alone = replay_offline(items, letters, provider)
    assert [record.eligible_blocks for record in alone.records] == [20, 0]
    assert provider.stats().donors == 0
    pooled = replay_offline(items, letters, core(), shared_pool=True)
    assert [record.eligible_blocks for record in pooled.records] == [20, 20]
    assert [record.exact_blocks for record in pooled.records] == [20, 20]


def test_among_all_donors_controls_get_no_figures(letters: Tokenizer, make_item: MakeItem, distinct: Distinct) -> None:
    items = four_items(make_item, distinct)
    result = result_of(items, replay_offline(items, letters, core(), shared_pool=True), shared_pool=True)
    assert result.aggregate.negative_control_semantic_eligible_rate is None
    assert result.by_transform["negative_control"].aggregate.negative_control_semantic_eligible_rate_by_request is None
    assert result.aggregate.semantic_eligible_block_rate is not None


class Faulty(ExactBlockProvider):
    """The exact provider, except that one call does what it is told for one item."""

    def __init__(self, call: str, request: str, fault: Callable[[LookupRequest], Any]) -> None:
        super().__init__(16)
        self._call, self._request, self._fault = call, request, fault

    def lookup(self, request: LookupRequest) -> LookupResult:
        if self._call == "lookup" and request.request_id == self._request:
            return self._fault(request)  # type: ignore[no-any-return]
        return super().lookup(request)

    def offer_donor(self, offer: DonorOffer) -> OfferResult:
        if self._call == "offer" and offer.donor_id == self._request:
            raise OSError("no room")
        return super().offer_donor(offer)


def two_items(make_item: MakeItem, distinct: Distinct) -> list[ManifestItem]:
    return [
        make_item(name, [distinct(at, 64)], distinct(at, 64), "exact_repeat") for name, at in (("a", 0), ("b", 500))
    ]


def raising(request: LookupRequest) -> Any:
    raise KeyError("lost")


def span_plan(request: LookupRequest, *spans: Span, **changes: Any) -> LookupResult:
    request_id = changes.get("request_id", request.request_id)
    return LookupResult(Plan.over(request_id, changes.get("tokens", int(request.token_ids.size)), 0, spans), None)


def first_donor(item: ManifestItem) -> str:
    return item.donor_prompts[0].donor_id


def test_a_provider_that_raises_fails_that_item_only(
    letters: Tokenizer, make_item: MakeItem, distinct: Distinct
) -> None:
    items = two_items(make_item, distinct)
    run = replay_offline(items, letters, Faulty("lookup", f"offline-{items[0].item_id}", raising))
    failed, served = run.records
    assert (failed.status, failed.outcome) == ("error", "error")
    assert failed.error == "provider raised KeyError: 'lost'"
    assert served.status == "ok"
    assert served.eligible_blocks == 4
    # What the provider did not tell is unknown; what needs no provider is known.
    assert (failed.eligible_blocks, failed.candidate_blocks, failed.exact_blocks, failed.total_blocks) == (
        None,
        None,
        4,
        4,
    )
    total = result_of(items, run).aggregate
    assert (total.requests_ok, total.requests_failed) == (1, 1)
    assert _parts(total.semantic_eligible_block_rate) == (4, 8)
    assert _parts(total.exact_block_hit_rate) == (8, 8)


def test_an_offer_that_raises_fails_its_item(letters: Tokenizer, make_item: MakeItem, distinct: Distinct) -> None:
    items = two_items(make_item, distinct)
    run = replay_offline(items, letters, Faulty("offer", first_donor(items[1]), raising))
    assert [record.error for record in run.records] == [None, "provider raised OSError: no room"]
    pooled = replay_offline(items, letters, Faulty("offer", first_donor(items[1]), raising), shared_pool=True)
    assert [record.status for record in pooled.records] == ["ok", "ok"]
    assert pooled.offers == {"registered": 1, "raised OSError": 1}


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (
            lambda r, d: span_plan(r, Span(0, d, 1, 32)),
            "differs from donor .* in 32 of them, first at prompt position 0",
        ),
        (lambda r, d: span_plan(r, Span(0, "x", 0, 32)), "names donor 'x', which was never offered here"),
        (lambda r, d: span_plan(r, Span(32, d, 40, 32)), "ends at 72 of donor .*, which has 64 tokens"),
        (lambda r, d: span_plan(r, Span(0, d, 0, 32), request_id="other"), "is for request 'other'"),
        (lambda r, d: span_plan(r, Span(0, d, 0, 32), tokens=65), "is for 65 tokens, the prompt has 64"),
        (lambda r, d: None, "returned NoneType, not a LookupResult"),
    ],
)
def test_what_breaks_the_contract_is_an_error_of_the_provider(
    letters: Tokenizer, make_item: MakeItem, distinct: Distinct, answer: Callable[..., Any], complaint: str
) -> None:
    items = two_items(make_item, distinct)
    fault = Faulty("lookup", f"offline-{items[0].item_id}", lambda request: answer(request, first_donor(items[0])))
    run = replay_offline(items, letters, fault)
    assert [record.status for record in run.records] == ["error", "ok"]
    assert re.match(f"provider broke the contract: .*{complaint}", str(run.records[0].error))


def test_a_control_that_failed_leaves_the_control_rates_without_a_value(
    letters: Tokenizer, make_item: MakeItem, distinct: Distinct
) -> None:
    items = [
        make_item(name, [distinct(at, 64)], distinct(at + 100, 64), "negative_control")
        for name, at in (("a", 0), ("b", 500))
    ]
    run = replay_offline(items, letters, Faulty("lookup", f"offline-{items[0].item_id}", raising))
    rate = result_of(items, run).aggregate.negative_control_semantic_eligible_rate
    assert rate is not None
    assert (rate.value, rate.numerator, rate.denominator) == (None, 0, 8)


def test_refused_donors_are_counted_with_the_reason(
    letters: Tokenizer, make_item: MakeItem, distinct: Distinct
) -> None:
    run = replay_offline([make_item("short", [distinct(0, 5)], distinct(0, 64))], letters, core())
    assert run.offers == {"donor_too_short": 1}
    assert run.records[0].decline_reason == "no_donors"


def test_an_item_without_donors_is_measured_too(letters: Tokenizer, make_item: MakeItem, distinct: Distinct) -> None:
    record = replay_offline([make_item("alone", [], distinct(0, 64))], letters, core()).records[0]
    assert (record.status, record.exact_blocks, record.eligible_blocks) == ("ok", 0, 0)


def test_one_donor_id_for_two_texts_is_refused(letters: Tokenizer, make_item: MakeItem, distinct: Distinct) -> None:
    one = make_item("same", [distinct(0, 64)], distinct(0, 64))
    other = make_item("same", [distinct(9, 64)], distinct(0, 64)).model_copy(update={"item_id": "f" * 16})
    with pytest.raises(InputError, match="stands for two different texts"):
        replay_offline([one, other], letters, core(), shared_pool=True)


@pytest.mark.parametrize("block_size", [0, -3])
def test_a_block_has_at_least_one_token(letters: Tokenizer, block_size: int) -> None:
    with pytest.raises(InputError, match="--block-size must be at least 1"):
        replay_offline([], letters, core(), block_size)


def _parts(rate: Any) -> tuple[float, float]:
    assert rate is not None
    assert rate.value == pytest.approx(rate.numerator / rate.denominator)
    return rate.numerator, rate.denominator
