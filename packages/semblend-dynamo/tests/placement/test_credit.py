"""What each worker could reuse of a prompt."""

from semblend_dynamo.placement import Finding, Piece, credits_of, likeness_credits

FINDING = Finding("r", 1000, (Piece(100, 400, "first", 0), Piece(500, 400, "second", 200)))


def test_each_worker_is_credited_with_what_it_holds() -> None:
    held = {"first": {"a": 400, "b": 400}, "second": {"b": 600}}
    assert credits_of(FINDING, held, {}) == {"a": 400, "b": 800}


def test_partial_residency_counts_in_part() -> None:
    assert credits_of(FINDING, {"second": {"a": 304}}, {}) == {"a": 104}
    assert credits_of(FINDING, {"second": {"a": 200}}, {}) == {}


def test_an_exact_prefix_is_no_credit() -> None:
    held = {"first": {"a": 400}, "second": {"a": 600}}
    assert credits_of(FINDING, held, {"a": 300}) == {"a": 600}
    assert credits_of(FINDING, held, {"a": 1000}) == {}


def test_a_token_that_two_donors_hold_counts_once() -> None:
    finding = Finding("r", 1000, (Piece(0, 500, "first", 0), Piece(100, 500, "twin", 50)))
    assert credits_of(finding, {"first": {"a": 500}, "twin": {"a": 550, "b": 550}}, {}) == {"a": 600, "b": 500}


def test_likeness_is_worth_a_share_of_the_prompt_where_the_donor_still_lies() -> None:
    held = {"like": {"a": 160}, "less": {"a": 160, "b": 160}, "gone": {"c": 0}}
    similarity = {"like": 0.9, "less": 0.7, "gone": 1.0, "unknown": 1.0}
    assert likeness_credits(similarity, held, 1000, 0.1) == {"a": 90, "b": 70}


def test_donors_that_hold_most_come_first() -> None:
    finding = Finding("r", 100, (Piece(0, 10, "small", 0), Piece(10, 50, "large", 5), Piece(60, 10, "large", 70)))
    assert finding.donor_ids == ("large", "small")
    assert finding.needed_of("large") == 80
    assert finding.needed_of("unknown") == 0
