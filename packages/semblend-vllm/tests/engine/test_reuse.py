"""What changes in a prompt may be reused, and the answer stays what it was."""

from __future__ import annotations

import time
from typing import Any

import pytest

TOPICS = {
    "harbour": ("Marit Solberg", "basins", "timber", 1871),
    "ferry": ("Jonas Weil", "crossings", "herring", 1903),
    "lighthouse": ("Edgar Lund", "crates", "iron", 1884),
    "school": ("Astrid Holm", "pupils", "charts", 1931),
}
PASSAGES = [
    f"The {topic} was in the hands of {name} from {year} on. "
    + " ".join(
        f"In {year + n} the {topic} counted {n * 13 % 70 + 4} {units}, paid {n * 7 % 40 + 2} crowns for {goods}, "
        f"and {name} noted that {('rain', 'frost', 'wind')[n % 3]} had kept {n * 5 % 11 + 1} people away."
        for n in range(1, 6)
    )
    for topic, (name, units, goods, year) in TOPICS.items()
]
DOCUMENT = "\n\n".join(PASSAGES)


def first(question: str = "Who kept a diary?") -> str:
    return f"You answer questions about local history.\n\n{DOCUMENT}\n\nQuestion: {question}\nAnswer:"


CASES: dict[str, tuple[list[str], str, float]] = {
    "new instruction": (
        [first()],
        f"Read the text below with care. Reply in a few words and name nobody who is not mentioned in it.\n\n{DOCUMENT}"
        "\n\nQuestion: Who led the school?\nAnswer:",
        0.03,
    ),
    "new task in front": (
        [first()],
        f"Task: say in a sentence what became of the lighthouse, from the text that follows.\n\n{DOCUMENT}\n\nAnswer:",
        0.03,
    ),
    "passages in another order": (
        [first()],
        "Records from the town archive, newest first.\n\n"
        + "\n\n".join(f"Record {n}: {PASSAGES[i]}" for n, i in enumerate((2, 0, 3, 1), 1))
        + "\n\nQuestion: Who was the captain of the ferry?\nAnswer:",
        0.05,
    ),
    "passages of four requests": (
        [f"Note {n} of the town archive:\n{passage}\n\nTitle:" for n, passage in enumerate(PASSAGES)],
        "Four notes.\n\n" + "\n\n".join(PASSAGES) + "\n\nQuestion: Where was the lighthouse ordered?\nAnswer:",
        0.15,
    ),
    "edited in one place": (
        [first()],
        first("Who had the school?").replace("In 1886 the lighthouse", "In the summer of 1886 the old lighthouse"),
        0.01,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_computed_before_is_reused_and_the_answer_stays(engine: Any, divergence: Any, name: str) -> None:
    donors, recipient, bound = CASES[name]
    for donor in donors:
        engine.ask(donor, salt=name, tokens=1)
    engine.settle()
    before = engine.stats().confirmed_tokens
    reused = engine.ask(recipient, salt=name)
    cold = engine.ask(recipient, salt=f"{name}, cold", reuse="off")

    confirmed = engine.stats().confirmed_tokens - before
    assert cold.cached_tokens == 0
    assert confirmed > 0.3 * cold.prompt_tokens
    # Of several passages the tier may compute half.
    assert reused.cached_tokens > (0.4 if name.startswith("passages") else 0.7) * cold.prompt_tokens
    assert divergence(cold, reused) < bound
    assert reused.tokens[0] == cold.tokens[0]
    engine.check_integrity()


def test_several_requests_reuse_in_one_step(engine: Any, divergence: Any) -> None:
    engine.ask(first(), salt="batch", tokens=1)
    engine.settle()
    prompts = [CASES[name][1] for name in ("new instruction", "new task in front", "passages in another order")]
    before = engine.stats().outcomes.get("materialized", 0)
    together = engine.ask_all(prompts, salt="batch")
    alone = [engine.ask(prompt, salt="batch, cold", reuse="off") for prompt in prompts]
    assert engine.stats().outcomes["materialized"] == before + 3
    assert all(divergence(cold, warm) < 0.05 for cold, warm in zip(alone, together, strict=True))
    engine.check_integrity()


def test_the_cost_gate_is_told_when_a_forward_ended(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM asks for its results later, when it has launched the next one."""
    told: list[tuple[float | None, float]] = []
    finished = engine.side.costs.step_finished

    def noting(made_for: Any, ended: float | None = None) -> None:
        told.append((ended, time.perf_counter()))
        finished(made_for, ended)

    monkeypatch.setattr(engine.side.costs, "step_finished", noting)
    began = time.perf_counter()
    engine.ask("Say yes.", salt="ends", tokens=4)
    assert len(told) >= 4
    assert all(ended is not None and began < ended < asked for ended, asked in told)


def test_an_exact_prefix_is_left_to_vllm(engine: Any) -> None:
    prompt = first("Which town?")
    engine.ask(prompt, salt="exact", tokens=1)
    engine.settle()
    again = engine.ask(prompt, salt="exact", tokens=1)
    assert again.cached_tokens == (again.prompt_tokens - 1) // 32 * 32
    engine.check_integrity()


def test_nothing_is_counted_as_found_that_was_computed(engine: Any) -> None:
    engine.ask(first(), salt="counted", tokens=1)
    engine.settle()
    before = engine.stats().confirmed_tokens
    reused = engine.ask(CASES["new instruction"][1], salt="counted")
    assert reused.cached_tokens == engine.stats().confirmed_tokens - before
