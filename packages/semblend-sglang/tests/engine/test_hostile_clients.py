"""What hostile clients send: SGLang's scheduler serves everybody, and what is kept of them is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from semblend_core.provider import open_requests
from semblend_core.serving import donors, hot, lineage, namespaces
from semblend_core.testing import held_by, passage
from semblend_core.testing.fuzzing import few_or_many, fuzz, texts, values

DOCUMENT = passage(1, 240)
LONG = "k" * 100_000


def prompt_of(number: int) -> list[int]:
    return [*passage(1000 + number, 24), *DOCUMENT, *passage(5000 + number, 8)]


@few_or_many
def test_whatever_a_client_asks_of_semblend_it_is_served(cases: int, new_rig: Callable[..., Any]) -> None:
    rig, seen = new_rig(), []
    rig.serve(prompt_of(0), "donor", salt="tenant")

    def check(parameters: Any, rid: str, salt: str | None) -> None:
        seen.append(None)
        prompt = prompt_of(len(seen))
        request = rig.submit(prompt, rid, salt=salt)
        request.sampling_params.custom_params = parameters
        while request in rig.waiting:
            rig.step()
        slots = rig.slots_of(request)
        assert rig.tokens_at(slots) == prompt[: len(slots)]
        rig.finish(request)

    ours = st.fixed_dictionaries({"semblend": values | st.fixed_dictionaries({"mode": values, "capture": values})})
    fuzz(cases, check, values | ours, texts, st.none() | st.just("tenant") | texts)
    rig.check_accounts()


@pytest.fixture
def small_books(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every book is full soon."""
    for module, name in (
        *((namespaces, "MOST_REMEMBERED"), (open_requests, "REMEMBERED_REPORTS"), (donors, "MOST_LOST")),
        *((donors, "MOST_ASKED_ONCE"), (lineage, "MOST_LINEAGES"), (hot, "MOST_LINEAGES")),
    ):
        monkeypatch.setattr(module, name, 32)


@pytest.mark.usefixtures("small_books")
def test_a_flood_of_salts_that_are_used_once_leaves_nothing_behind(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(max_donors=32)

    def flood(numbers: range) -> dict[str, int]:
        for number in numbers:
            for turn in range(3):
                rig.serve(prompt_of(3 * number + turn), f"{number} {turn}", salt=f"salt {number}")
        rig.evict(rig.slots)
        rig.check_accounts()
        return dict(held_by(rig.side))

    before, after = flood(range(50)), flood(range(50, 150))
    grown = {place: (before.get(place, 0), size) for place, size in after.items()}
    assert {place: sizes for place, sizes in grown.items() if sizes[1] > 1.25 * sizes[0] + 8} == {}
    assert rig.side.provider.stats().confirmed_tokens > 0, "the clients did reuse"


def test_a_client_with_an_endless_salt_neither_gives_nor_takes(new_rig: Callable[..., Any]) -> None:
    rig = new_rig()
    for turn in range(2):
        assert rig.serve(prompt_of(turn), f"turn {turn}", salt=LONG).cached_tokens == 0
    assert rig.side.provider.stats().donors == 0
    assert sum(held_by(rig.side).values()) < len(LONG)
