"""The conformance suite: the design's invariants as tests that any provider or adapter inherits.

Subclass ``ProviderConformance`` in a test module and give one fixture, ``make_subject``: a callable that takes settings
as keywords and returns an empty ``Subject`` with them, and with ``sharing="all"`` unless they say otherwise. Each
test's name says the invariant it holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from semblend_core.contract import DeclineReason, LookupRequest, Outcome, OutcomeKind, Plan, as_token_ids
from semblend_core.settings import Settings
from semblend_core.testing.for_adapters import passage
from semblend_core.testing.io_guard import forbid_io_on_this_thread
from semblend_core.testing.subject import Fault, Served, Subject

MakeSubject = Callable[..., Subject]

TENANT = "tenant-a"
EVERYTHING = 1 << 30
"""More tokens than any cache of these tests holds."""
DECLINES_BY_FAULT = {
    Fault.LOOKUP_ERROR: {DeclineReason.INTERNAL_ERROR},
    Fault.DONOR_EVICTED: {DeclineReason.DONOR_EVICTED, DeclineReason.LOAD_FAILED},
    Fault.LOAD_ERROR: {DeclineReason.LOAD_FAILED},
}


class ProviderConformance:
    """Invariants 1 to 9. Invariant 10, no throughput lost, is a benchmark's business."""

    fillers = 40
    """Prompts of 1000 tokens that overfill the donors' budget, which grows with them. 8 do where each takes long."""

    @pytest.fixture
    def make_subject(self) -> MakeSubject:
        raise NotImplementedError("give a fixture `make_subject(**settings) -> Subject`")

    # 1. Exact wins.

    def test_1_a_repeated_prompt_is_left_to_the_engines_own_cache(self, make_subject: MakeSubject) -> None:
        subject = make_subject()
        prompt = passage(1, 400)
        subject.serve(prompt)
        subject.settle()
        again = subject.serve(prompt)
        assert again.exact_prefix_tokens >= len(prompt) - 2 * subject.block_size
        assert again.outcome.kind is OutcomeKind.EXACT_PREFIX
        assert again.plan is None

    def test_1_spans_start_behind_the_exact_prefix(self, make_subject: MakeSubject) -> None:
        subject = make_subject()
        head, document = passage(1, 320), passage(2, 320)
        if subject.exact_only:
            subject.serve(head + document)
            subject.settle()
            subject.evict(EVERYTHING)
        subject.serve(head + passage(3, 64))
        subject.serve(passage(4, 64) + document)
        subject.serve(passage(5, 32) + head)  # A donor that could serve the head too.
        subject.settle()
        served = subject.serve(head + document + passage(6, 40))
        plan = _materialized(subject, served)
        assert served.exact_prefix_tokens >= len(head) - subject.block_size
        assert plan.exact_prefix_tokens == served.exact_prefix_tokens
        assert all(span.target_start >= served.exact_prefix_tokens for span in plan.spans)

    # 2. Nothing approximate under an exact key.

    def test_2_approximate_kv_never_answers_an_exact_probe(self, make_subject: MakeSubject) -> None:
        for appended in ([], passage(90, 64)):
            subject = _with_approximate_kv(make_subject)
            recipient = _serve_changed_instruction(subject)
            plan = _materialized(subject, recipient)
            probe = subject.serve([*recipient.prompt, *appended], reuse=False)
            assert probe.exact_prefix_tokens <= plan.first_approximate_token

    def test_2_who_wants_no_reuse_goes_on_from_nothing_approximate(self, make_subject: MakeSubject) -> None:
        subject = _with_lineages(make_subject)
        approximate_from, third_turn = _two_turns(subject)
        probe = subject.serve(third_turn, salt=TENANT, reuse=False)
        assert probe.outcome.kind is not OutcomeKind.MATERIALIZED
        assert probe.exact_prefix_tokens <= approximate_from

    # 3. A request served approximately never becomes a donor, except its untouched exact part.

    def test_3_what_was_computed_behind_relocated_kv_is_never_reused(self, make_subject: MakeSubject) -> None:
        subject = _with_approximate_kv(make_subject)
        question = passage(50, 200)
        recipient = _serve_changed_instruction(subject, question=question)
        _materialized(subject, recipient)
        later = subject.serve(passage(51, 80) + question + passage(52, 40))
        assert later.outcome.kind is OutcomeKind.DECLINED
        assert later.plan is None

    def test_3_relocated_tokens_are_reused_from_their_first_donor_only(self, make_subject: MakeSubject) -> None:
        subject = _with_approximate_kv(make_subject)
        recipient = _serve_changed_instruction(subject)
        approximate_from = _materialized(subject, recipient).first_approximate_token
        third = subject.serve(passage(53, 70) + passage(2, 400) + passage(54, 40))
        for span in _materialized(subject, third).spans:
            assert span.donor_id != recipient.request_id or span.donor_end <= approximate_from

    # 4. Namespaces.

    @pytest.mark.parametrize(
        ("captured", "asked"),
        [
            ({"salt": "tenant-a"}, {"salt": "tenant-b"}),
            ({"salt": "tenant-a"}, {"salt": None}),
            ({"salt": None}, {"salt": "tenant-a"}),
            ({"adapter": "lora-1"}, {"adapter": None}),
            ({"adapter": None}, {"adapter": "lora-1"}),
        ],
    )
    def test_4_another_namespace_sees_nothing(
        self, make_subject: MakeSubject, captured: dict[str, str | None], asked: dict[str, str | None]
    ) -> None:
        subject = make_subject()
        document = passage(2, 400)
        subject.serve(passage(1, 64) + document, **captured)  # type: ignore[arg-type]
        subject.settle()
        for prompt in (passage(1, 64) + document, passage(3, 80) + document + passage(4, 40)):
            served = subject.serve(prompt, **asked, fault=Fault.CAPTURE_ERROR)  # type: ignore[arg-type]
            assert served.plan is None
            assert served.exact_prefix_tokens == 0

    def test_4_the_same_salt_shares(self, make_subject: MakeSubject) -> None:
        subject = make_subject()
        _materialized(subject, _serve_changed_instruction(subject, salt="tenant-a"))

    def test_4_by_default_requests_without_a_salt_share_nothing(self, make_subject: MakeSubject) -> None:
        subject = make_subject(sharing=Settings().sharing)
        document = passage(2, 400)
        subject.serve(passage(1, 64) + document)
        subject.settle()
        assert subject.stats().donors == 0
        served = subject.serve(passage(3, 80) + document + passage(4, 40))
        assert served.plan is None
        assert served.outcome.reason is DeclineReason.NO_SALT
        assert subject.stats().declines[DeclineReason.NO_SALT] >= 1
        _materialized(subject, _serve_changed_instruction(subject, salt="tenant-a"))

    @pytest.mark.parametrize("salt", ["tenant-b", None])
    def test_4_another_salt_goes_on_from_nothing(self, make_subject: MakeSubject, salt: str | None) -> None:
        subject = _with_lineages(make_subject)
        approximate_from, third_turn = _two_turns(subject)
        opening = approximate_from + subject.block_size
        subject.serve(third_turn[:opening], salt=salt)  # It stands where the lineage begins.
        stranger = subject.serve(third_turn, salt=salt)
        assert stranger.outcome.kind is not OutcomeKind.MATERIALIZED
        assert stranger.exact_prefix_tokens <= opening

    def test_4_new_weights_go_on_from_nothing_of_the_old(self, make_subject: MakeSubject) -> None:
        subject = _with_lineages(make_subject)
        approximate_from, third_turn = _two_turns(subject)
        subject.change_weights()
        opening = approximate_from + subject.block_size
        subject.serve(third_turn[:opening], salt=TENANT)
        later = subject.serve(third_turn, salt=TENANT)
        assert later.outcome.kind is not OutcomeKind.MATERIALIZED
        assert later.exact_prefix_tokens <= opening

    def test_4_a_raw_salt_is_never_shown(self, make_subject: MakeSubject, caplog: pytest.LogCaptureFixture) -> None:
        salt = "raw-salt-7f3a"
        with caplog.at_level(logging.DEBUG):
            subject = make_subject()
            served = _serve_changed_instruction(subject, salt=salt)
            subject.serve(passage(60, 300), salt=salt, fault=Fault.LOOKUP_ERROR)
        shown = caplog.text + repr(served) + repr(subject.stats())
        assert salt not in shown

    # 5. Fail closed.

    @pytest.mark.parametrize("fault", list(DECLINES_BY_FAULT))
    def test_5_a_fault_ends_in_normal_prefill_and_a_counted_reason(
        self, make_subject: MakeSubject, fault: Fault
    ) -> None:
        subject = make_subject()
        subject.serve(passage(1, 64) + passage(2, 400))
        subject.settle()
        served = subject.serve(_reframed(subject, 1, passage(2, 400), 3), fault=fault)
        assert served.outcome.kind is OutcomeKind.DECLINED
        assert served.outcome.reason in DECLINES_BY_FAULT[fault]
        assert subject.stats().declines.get(served.outcome.reason, 0) == 1
        _assert_right_tokens(served)
        subject.check_integrity()

    def test_5_after_a_fault_the_next_request_is_served_with_reuse(self, make_subject: MakeSubject) -> None:
        subject = make_subject()
        for fault in Fault:
            subject.serve(passage(70, 64) + passage(71, 300), fault=fault)
        subject.settle()
        _materialized(subject, _serve_changed_instruction(subject))

    def test_5_a_capture_that_fails_leaves_no_donor(self, make_subject: MakeSubject) -> None:
        subject = make_subject()
        document = passage(2, 400)
        subject.serve(passage(1, 64) + document, fault=Fault.CAPTURE_ERROR)
        subject.settle()
        served = subject.serve(passage(3, 80) + document + passage(4, 40))
        assert served.plan is None

    # 6. The scheduler's thread.

    def test_6_a_lookup_touches_no_disk_network_or_process(self, make_subject: MakeSubject) -> None:
        subject = make_subject()
        recipient = _serve_changed_instruction(subject)
        namespace = subject.namespace()
        for number, prompt in enumerate((list(recipient.prompt), passage(80, 500))):
            request = LookupRequest(f"guarded-{number}", namespace, as_token_ids(prompt))
            with forbid_io_on_this_thread():
                subject.provider.lookup(request)
            subject.provider.report_outcome(
                Outcome(request.request_id, OutcomeKind.DECLINED, reason=DeclineReason.ABORTED)
            )

    def test_6_a_lookup_past_its_time_budget_is_abandoned(self, make_subject: MakeSubject) -> None:
        subject = make_subject(lookup_budget_ms=1e-6)
        served = _serve_changed_instruction(subject)
        assert served.outcome.reason is DeclineReason.LOOKUP_TIMEOUT
        assert subject.stats().declines[DeclineReason.LOOKUP_TIMEOUT] >= 1
        _assert_right_tokens(served)

    # 7. Budgets, and capture off the hot path.

    def test_7_donors_stay_within_their_byte_budget(self, make_subject: MakeSubject) -> None:
        budget = self.fillers * 2400
        subject = make_subject(donor_index_bytes=budget)
        for seed in range(self.fillers):
            subject.serve(passage(100 + seed, 1000))
            subject.settle()
            assert subject.stats().donor_bytes <= budget
        assert subject.stats().evicted_donors > 0
        subject.check_integrity()
        newest = subject.serve(_reframed(subject, None, passage(99 + self.fillers, 1000), 3))
        _materialized(subject, newest)

    def test_7_a_planned_donor_is_not_evicted_before_its_outcome(self, make_subject: MakeSubject) -> None:
        subject = make_subject(donor_index_bytes=self.fillers * 2400)
        first = subject.serve(passage(1, 64) + passage(2, 400))
        subject.settle()
        namespace = subject.namespace()
        prompt = passage(3, 80) + passage(2, 400) + passage(4, 40)
        result = subject.provider.lookup(LookupRequest("in-flight", namespace, as_token_ids(prompt)))
        assert result.plan is not None
        assert result.plan.donor_ids == (first.request_id,)
        for seed in range(self.fillers):
            subject.serve(passage(200 + seed, 1000))
        subject.settle()
        assert subject.provider.forget_donor(namespace, first.request_id), "a pinned donor was evicted"
        subject.provider.report_outcome(Outcome("in-flight", OutcomeKind.DECLINED, reason=DeclineReason.ABORTED))
        subject.check_integrity()

    def test_7_a_request_ends_while_its_capture_is_still_running(self, make_subject: MakeSubject) -> None:
        subject = make_subject()
        document = passage(2, 400)
        subject.serve(passage(1, 64) + document, fault=Fault.CAPTURE_STALLED)
        early = subject.serve(_reframed(subject, 1, document, 3), fault=Fault.CAPTURE_ERROR)
        assert early.plan is None, "a donor was visible before it was durable"
        subject.settle()
        _materialized(subject, subject.serve(_reframed(subject, 1, document, 5)))

    # 8. Self-test.

    def test_8_a_failed_self_test_means_discovery_only_and_says_so(
        self, make_subject: MakeSubject, caplog: pytest.LogCaptureFixture
    ) -> None:
        subject = make_subject()
        with caplog.at_level(logging.WARNING):
            subject.fail_self_test()
        assert caplog.records, "a failed self-test must be logged"
        served = _serve_changed_instruction(subject)
        assert served.outcome.kind is OutcomeKind.DISCOVERY_ONLY
        assert subject.stats().confirmed_tokens == 0
        assert subject.serve(list(served.prompt), reuse=False).exact_prefix_tokens > 0, "a normal prefill is exact"
        _assert_right_tokens(served)

    # 9. Confirmed bytes only.

    def test_9_reuse_is_the_sum_of_what_the_backend_confirmed(self, make_subject: MakeSubject) -> None:
        subject = make_subject()
        served = _serve_changed_instruction(subject)
        plan = _materialized(subject, served)
        assert served.outcome.confirmed_tokens is not None
        assert served.outcome.confirmed_tokens <= plan.reused_tokens
        assert subject.stats().confirmed_tokens == served.outcome.confirmed_tokens
        subject.provider.report_outcome(served.outcome)
        assert subject.stats().confirmed_tokens == served.outcome.confirmed_tokens, "counted twice"

    def test_9_a_plan_that_did_not_land_is_not_reuse(self, make_subject: MakeSubject) -> None:
        subject = make_subject()
        served = _serve_changed_instruction(subject, fault=Fault.LOAD_ERROR)
        assert served.plan is not None
        assert served.outcome.confirmed_tokens is None
        assert subject.stats().plans == 1
        assert subject.stats().confirmed_tokens == 0

    def test_9_every_slot_holds_the_kv_of_its_own_token(self, make_subject: MakeSubject) -> None:
        subject = _with_approximate_kv(make_subject)
        parts = [passage(seed, 150) for seed in range(4)]
        for number, part in enumerate(parts):
            subject.serve(passage(300 + number, 40 + number) + part)
        subject.settle()
        composite = subject.serve(passage(310, 30) + parts[2] + parts[0] + parts[3] + parts[1] + passage(311, 30))
        assert len(_materialized(subject, composite).donor_ids) == len(parts)
        _assert_right_tokens(composite)

    @pytest.mark.parametrize("tokens", [64, 160, 4000])
    def test_9_what_is_evicted_between_two_turns_is_not_counted_on(
        self, make_subject: MakeSubject, tokens: int
    ) -> None:
        subject = _with_lineages(make_subject)
        _, third_turn = _two_turns(subject)
        subject.evict(tokens)
        third = subject.serve(third_turn, salt=TENANT)
        _assert_right_tokens(third)
        assert (third.outcome.confirmed_tokens or 0) + third.exact_prefix_tokens < len(third_turn)
        subject.check_integrity()


def _with_lineages(make_subject: MakeSubject) -> Subject:
    subject = make_subject()
    if not subject.has_lineages:
        pytest.skip("nobody goes on from what this subject computed behind relocated KV")
    return subject


def _two_turns(subject: Subject) -> tuple[int, list[int]]:
    """A conversation about a document that another request brought: from where on it is approximate, and a third turn.

    The second turn takes what the first left where it lies: nothing is moved.
    """
    first = _serve_changed_instruction(subject, salt=TENANT)
    approximate_from = _materialized(subject, first).first_approximate_token
    prompt = [*first.prompt, *passage(90, 64)]
    second = subject.serve(prompt, salt=TENANT)
    assert second.outcome.kind is OutcomeKind.MATERIALIZED, f"expected reuse, got {second.outcome}"
    assert second.outcome.confirmed_bytes is None, "KV was moved that lies in place"
    assert (second.outcome.confirmed_tokens or 0) >= 300
    _assert_right_tokens(second)
    return approximate_from, [*prompt, *passage(91, 64)]


def _serve_changed_instruction(
    subject: Subject, *, question: list[int] | None = None, salt: str | None = None, fault: Fault | None = None
) -> Served:
    """One document behind one instruction, then behind another: the case everything begins with."""
    document = passage(2, 400)
    subject.serve(passage(1, 64) + document, salt=salt)
    subject.settle()
    served = subject.serve(_reframed(subject, 1, document, 3, question), salt=salt, fault=fault)
    subject.settle()
    return served


def _reframed(
    subject: Subject, before: int | None, document: list[int], now: int, question: list[int] | None = None
) -> list[int]:
    """``document``, which a donor has behind the instruction ``before``, behind another one and with a question.

    Where only exact prefixes are loaded the instruction stays, and the engine's own cache has lost both.
    """
    question = question or passage(now + 1, 40)
    if not subject.exact_only:
        return passage(now, 80) + document + question
    subject.evict(EVERYTHING)
    return (passage(before, 64) if before is not None else []) + document + question


def _with_approximate_kv(make_subject: MakeSubject) -> Subject:
    subject = make_subject()
    if subject.exact_only:
        pytest.skip("this subject loads exact prefixes only")
    return subject


def _materialized(subject: Subject, served: Served) -> Plan:
    """The plan of a request that must have been served with reuse; otherwise the test would prove nothing."""
    assert served.outcome.kind is OutcomeKind.MATERIALIZED, f"expected reuse, got {served.outcome}"
    assert served.plan is not None
    _assert_right_tokens(served)
    subject.check_integrity()
    return served.plan


def _assert_right_tokens(served: Served) -> None:
    if served.kv_token_ids is not None:
        assert served.kv_token_ids == served.prompt, "a slot holds the KV of another token"
