"""Whatever is recomputed is what a cold prefill computes; with everything recomputed, so is the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

NOISE = 2e-3
"""Log-probabilities of one prompt, computed in another order: 5e-4 at most in a hundred trials."""
HEAD = "You keep the records of a small town. " + " ".join(
    f"Shelf {n} holds the papers of {1800 + 7 * n}, and box {n * 5 % 13} belongs on it." for n in range(6)
)
PASSAGES = [
    " ".join(
        f"The {place} sold {n * 13 % 70 + 4} {goods} in {year + n}, and {n * 5 % 11 + 1} were lost." for n in range(9)
    )
    for place, goods, year in (
        ("mill", "sacks", 1871),
        ("forge", "nails", 1903),
        ("dairy", "wheels", 1884),
        ("inn", "beds", 1931),
    )
]
DOCUMENT = "\n\n".join(PASSAGES)
ASK = "Question: who lost most?\nAnswer:"
DONOR = f"{HEAD}\n\nA report.\n\n{DOCUMENT}\n\nQuestion: when?\nAnswer:"
CASES: dict[str, tuple[list[str], str]] = {
    "new instruction": ([DONOR], f"{HEAD}\n\nReply in one word and invent nothing.\n\n{DOCUMENT}\n\n{ASK}"),
    "new task in front": ([DONOR], f"{HEAD}\n\nTask: say who lost most, from this:\n\n{DOCUMENT}\n\nAnswer:"),
    "passages in another order": (
        [DONOR],
        f"{HEAD}\n\n" + "\n\n".join(f"Record {n}: {PASSAGES[i]}" for n, i in enumerate((2, 0, 3, 1))) + f"\n\n{ASK}",
    ),
    "passages of four requests": (
        [f"{HEAD}\n\nNote {n}.\n\n{passage}\n\nTitle:" for n, passage in enumerate(PASSAGES)],
        f"{HEAD}\n\nFour notes.\n\n{DOCUMENT}\n\n{ASK}",
    ),
    "edited in one place": ([DONOR], DONOR.replace("The forge sold", "The old forge by the river sold", 1)),
}


def serve_donors(engine: Any, donors: list[str], salt: str) -> None:
    for donor in donors:
        engine.ask(donor, salt=salt, tokens=1)
    engine.settle()
    engine.empty_own_cache()


def worst(cold: Any, other: Any) -> float:
    """Largest difference of a log-probability that both name, over all steps; the answers must be the same."""
    assert cold.tokens == other.tokens
    return max(
        float(abs(ours[token] - theirs[token]))
        for ours, theirs in zip(cold.logprobs, other.logprobs, strict=True)
        for token in ours.keys() & theirs.keys()
    )


def everything_behind_the_head(claim_for: Callable[..., Any]) -> Callable[..., Any]:
    """The head stands where it stood, behind nothing: its KV is exact. All else is computed over what was loaded."""

    def changed(life: Any, plan: Any) -> Any:
        claim = claim_for(life, plan)
        head = claim.spans[0]
        assert (head.target_start, head.donor_start) == (0, 0)
        assert len(claim.spans) > 1
        return replace(claim, rows=((head.target_end, claim.end),), correction=None, probing=None)

    return changed


@pytest.mark.parametrize("name", CASES)
def test_with_everything_recomputed_the_answer_is_the_cold_one(
    engine: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    donors, recipient = CASES[name]
    cold = engine.ask(recipient, salt="all of it, cold", reuse="off")
    serve_donors(engine, donors, f"all of it, {name}")
    seeker = engine.side.admission.seeker
    monkeypatch.setattr(seeker, "_claim_for", everything_behind_the_head(seeker._claim_for))
    before = engine.stats().confirmed_tokens
    answer = engine.ask(recipient, salt=f"all of it, {name}")
    assert engine.stats().confirmed_tokens > before
    assert worst(cold, answer) < NOISE
    engine.check_integrity()


def test_a_prompt_that_comes_back_after_vllm_forgot_it_is_the_same(engine: Any) -> None:
    """Nothing moved and nothing else stands before it: what was captured and brought back must be what it was."""
    cold = engine.ask(DONOR, salt="identity, cold", reuse="off")
    serve_donors(engine, [DONOR], "identity")
    before = engine.stats().confirmed_tokens
    answer = engine.ask(DONOR, salt="identity")
    assert engine.stats().confirmed_tokens - before > 0.8 * answer.prompt_tokens
    assert worst(cold, answer) < NOISE
