"""The adapters' benchmarks measure what they say: prompts share what is meant, bars are bars."""

from __future__ import annotations

import argparse
import collections
import math
from pathlib import Path

import pytest

from semblend_core.testing.benchmarks import (
    Answer,
    Material,
    Pairs,
    Prompts,
    bootstrapped,
    conversation,
    endurance,
    fidelity,
    never_slower,
    saturation,
    traffic,
)
from semblend_core.testing.benchmarks.never_slower import SHAPES, Cell, CellResult

GRAM = 32
"""Shorter than any span, longer than what two texts share by chance."""


def grams(tokens: list[int]) -> set[tuple[int, ...]]:
    return {tuple(tokens[at : at + GRAM]) for at in range(len(tokens) - GRAM + 1)}


def shared(material: Material, recipient: list[int]) -> float:
    """How much of a prompt its donors hold."""
    known = set().union(*map(grams, material.donors))
    return sum(gram in known for gram in grams(recipient)) / len(grams(recipient))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("text", [(), tuple(range(2000, 12_000))])
def test_a_prompt_of_each_shape_has_its_length_and_holds_its_documents(shape: str, text: tuple[int, ...]) -> None:
    prompts = Prompts(50_000, text)
    material = SHAPES[shape](prompts, 4096)
    first, second = material.recipient(), material.recipient()
    for recipient in (first, second):
        assert 4096 - 20 <= len(recipient) <= 4096
        assert shared(material, recipient) > 0.75
    assert first[:16] != second[:16], "an opening that two prompts share would be exact"
    assert shared(SHAPES[shape](prompts, 4096), first) == 0, "other documents share nothing"


@pytest.mark.parametrize("text", [(), tuple(range(2000, 2050)) * 20], ids=["ids", "text of few words"])
def test_no_two_prompts_begin_with_the_same_token(text: tuple[int, ...]) -> None:
    prompts = Prompts(50_000, text)
    materials = [shape(prompts, 512) for shape in SHAPES.values()]
    asked = [prompt for each in materials for prompt in (*each.donors, *(each.recipient() for _ in range(30)))]
    assert len({prompt[0] for prompt in asked}) == len(asked), "an exact cache would find the token"


def test_a_reordered_passage_never_follows_the_one_it_followed() -> None:
    prompts = Prompts(50_000)
    material = prompts.reorder(2048, 4)
    (donor,) = material.donors
    passage = (2048 - 64) // 4 - 16
    longer = {tuple(donor[at : at + passage + 1]) for at in range(len(donor) - passage)}
    for _ in range(10):
        recipient = material.recipient()
        assert not any(tuple(recipient[at : at + passage + 1]) in longer for at in range(len(recipient) - passage))


def test_the_ratio_is_that_of_pairs_and_lies_within_its_interval() -> None:
    slow_then_fast = [100.0, 10.0] * 10
    pairs = Pairs([1.1 * value for value in slow_then_fast], slow_then_fast)
    ratio = pairs.ratio()
    assert ratio.value == pytest.approx(1.1)
    assert ratio.low == pytest.approx(1.1)
    assert ratio.high == pytest.approx(1.1)
    spread = bootstrapped([1.0, 2.0, 3.0, 4.0, 5.0])
    assert spread.low < spread.value == 3.0 < spread.high


class Parrot:
    """Says the next token of whatever the prompt quotes. With reuse it errs at every fourth place of its answer."""

    name, block_tokens = "parrot", 1

    def __init__(self) -> None:
        self.served: list[tuple[str, list[int]]] = []

    def settle(self) -> None: ...

    def ask(
        self, prompts: list[list[int]], *, salt: str, reuse: bool = True, output_tokens: int = 1, top: int = 0
    ) -> list[Answer]:
        (prompt,) = prompts
        self.served.append((salt, prompt))
        said: list[int] = []
        for _ in range(output_tokens):
            known = [*prompt, *said]
            quoted = next(at for at in range(len(known)) if known[at : at + 8] == known[-8:])
            said.append([*known, 7][quoted + 8])
        errs = reuse and len(prompt) % 4 == 0
        step = {said[-1]: math.log(0.1), 7: math.log(0.9)} if errs else {said[-1]: math.log(0.9), 7: math.log(0.1)}
        steps = (step,) if output_tokens == 1 else tuple({token: math.log(0.9), 7: math.log(0.1)} for token in said)
        return [Answer("r", len(prompt), 900 if reuse else 0, 1.0, tuple(said), steps)]


def test_answers_are_compared_token_by_token_behind_what_was_said_cold() -> None:
    options = argparse.Namespace(cases=2, size=1000, passages=4, answer=8, top=2, again=False)
    parrot = Parrot()
    found = fidelity.run(parrot, Prompts(50_000, range(2000, 52_000)), options)  # type: ignore[arg-type]
    for kind in ("one document", "composite", "reorder"):
        assert found[kind]["top_1"]["value"] == 0.75
        assert found[kind]["kl"]["value"] == pytest.approx(0.25 * 0.8 * math.log(9))
        asked = [prompt for salt, prompt in parrot.served if salt == f"{kind} 1"][-8:]
        assert [len(prompt) - len(asked[0]) for prompt in asked] == list(range(8))
        assert found[kind]["reused"]["value"] == pytest.approx(900 / len(asked[0]), rel=0.01)
        assert "kl_again" not in found[kind]


def test_what_an_engine_strays_by_itself_is_asked_without_reuse() -> None:
    options = argparse.Namespace(cases=1, size=1000, passages=4, answer=8, top=2, again=True)
    parrot = Parrot()
    found = fidelity.run(parrot, Prompts(50_000, range(2000, 52_000)), options)  # type: ignore[arg-type]
    assert found["composite"]["kl"]["value"] > 0
    assert found["composite"]["kl_again"]["value"] == 0
    assert found["composite"]["top_1_again"]["value"] == 1
    assert len([salt for salt, _ in parrot.served if salt == "composite 0, again"]) == 8


@pytest.mark.parametrize(("ratio", "high", "holds"), [(1.03, 1.059, True), (1.031, 1.04, False), (1.0, 1.06, False)])
def test_a_cell_holds_by_its_median_and_by_the_end_of_its_interval(ratio: float, high: float, holds: bool) -> None:
    cell = Cell(2048, "one-document")
    result = CellResult(cell.tokens, cell.shape, 1, 20, ratio, 0.9, high, 1.0, 1.0, 0.0, {}, [], [])
    assert result.holds is holds
    assert str(result).startswith("holds" if holds else "FAILS")


class Slowing:
    """Each request takes a millisecond longer than the one before, and half of it with reuse."""

    name = "slowing"

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []

    def settle(self) -> None: ...

    def ask(self, prompts: list[list[int]], *, salt: str, reuse: bool = True, output_tokens: int = 1) -> list[Answer]:
        self.asked.append((salt, reuse))
        took = len(self.asked) * (0.5 if reuse else 1.0)
        return [Answer("r", len(prompt), 0, took, (1,), ()) for prompt in prompts]

    def outcomes(self, answers: list[Answer]) -> collections.Counter[str]:
        return collections.Counter({"reused": len(answers)})


def test_shapes_of_a_length_share_the_request_without_reuse_of_their_round(tmp_path: Path) -> None:
    shapes, engine = ["one-document", "reorder-4"], Slowing()
    options = argparse.Namespace(
        sizes=[(1024, 1, None)],
        shapes=shapes,
        pairs=3,
        warm_up=1,
        answer=4,
        recipients_per_donor=9,
        out=tmp_path,
        resume=True,
    )
    found = never_slower.run(engine, Prompts(50_000), options)  # type: ignore[arg-type]
    one, other = found["cells"]
    assert one["off_all_ms"] == other["off_all_ms"]
    assert len(one["off_all_ms"]) == 3
    rounds = [engine.asked[2 + 3 * number : 5 + 3 * number] for number in range(4)]
    assert [[reuse for _, reuse in each].index(False) for each in rounds] == [0, 2, 1, 0], "each begins in turn"
    assert one["ratio"] == pytest.approx(0.5, abs=0.1)
    assert {salt for salt, reuse in engine.asked if reuse} == {"grid"}
    served = len(engine.asked)
    assert never_slower.run(engine, Prompts(50_000), options) == found  # type: ignore[arg-type]
    assert len(engine.asked) == served, "what lies in the folder is not measured again"


def test_turns_are_held_to_the_same_turn_without_reuse_and_the_first_to_its_second() -> None:
    good = [conversation.Turn(1, 1000, 12, 400, 100, 1000), conversation.Turn(2, 1100, 11, 10, 100, 60)]
    assert conversation.judge(good, times=True) == []
    slow = [conversation.Turn(1, 1000, 14, 400, 100, 1000), conversation.Turn(2, 1100, 12, 10, 130, 60)]
    assert len(conversation.judge(slow, times=True)) == 3
    assert conversation.judge(slow, times=False) == ["turn 2 computed 70 tokens more"]


def test_the_same_requests_come_in_the_same_order_whoever_serves_them() -> None:
    full = saturation.Traffic(requests=50)
    idle = full.idle()
    assert [asked.prompt for asked in full.asked()] == [asked.prompt for asked in idle.asked()]
    assert {asked.kind for asked in full.asked()} == {"reusable", "others"}
    known = set().union(*map(grams, full.donors()))
    assert all(grams(asked.prompt) & known for asked in full.asked() if asked.kind == "reusable")


def mixed(seed: int = 5) -> list[traffic.Asked]:
    limits = {"shortest": 200, "longest": 2000, "output_tokens": (4, 16)}
    return traffic.MixedTraffic(Prompts(50_000), seed=seed, **limits).requests(400)


def test_mixed_traffic_is_the_same_each_time_and_holds_what_its_kinds_say() -> None:
    asked = mixed()
    assert [(each.kind, each.prompt.tobytes()) for each in asked] == [(e.kind, e.prompt.tobytes()) for e in mixed()]
    counted = collections.Counter(each.kind for each in asked)
    assert all(abs(counted[kind] / len(asked) - share) < 0.08 for kind, share in traffic.SHARES.items())
    lengths: list[int] = []
    earlier: set[bytes] = set()
    for place, each in enumerate(asked):
        assert each.continues is None or each.continues < place
        before = 0 if each.continues is None else lengths[each.continues]
        lengths.append(before + len(each.prompt) + each.output_tokens)
        assert lengths[-1] <= 2000, "an engine would refuse it"
        assert (each.prompt.tobytes() in earlier) == (each.kind == "exact")
        if each.kind == "edited":
            alike = [other.prompt for other in asked[:place] if len(other.prompt) == len(each.prompt)]
            assert 0.6 < max(float((each.prompt == other).mean()) for other in alike) < 1
        earlier.add(each.prompt.tobytes())


def test_what_goes_on_from_a_request_is_asked_for_after_it() -> None:
    asked = mixed()
    parts = list(endurance.batches(asked, 6))
    assert [each for part in parts for each in part] == asked
    assert max(map(len, parts)) == 6
    begin = 0
    for part in parts:
        assert all(each.continues is None or each.continues < begin for each in part)
        begin += len(part)


class Hoarder:
    """Echoes; holds one token, one book and one file more after every request of a kind that leaves them behind."""

    name, block_tokens = "hoarder", 1

    def __init__(self, leaves: str) -> None:
        self._leaves, self._served, self._files = leaves, 0, []

    def ask(self, prompts: list[list[int]], *, salt: str, output_tokens: int) -> list[Answer]:
        self._served += len(prompts)
        if self._leaves == "files":
            self._files += [open("/dev/null") for _ in prompts]  # noqa: SIM115
        return [Answer(str(n), len(each), 0, 1.0, tuple(each[:output_tokens])) for n, each in enumerate(prompts)]

    def held(self) -> endurance.Held:
        left = {name: self._served if name == self._leaves else 0 for name in ("kv", "pins", "requests")}
        books = collections.Counter({"Book.entries": self._served if self._leaves == "books" else 100})
        return endurance.Held(left["kv"], left["pins"], left["requests"], books)

    def settle(self) -> None: ...

    def confirmed_tokens(self) -> int:
        return 0

    def outcomes(self, answers: list[Answer]) -> collections.Counter[str]:
        return collections.Counter(none=len(answers))

    def close(self) -> None:
        for file in self._files:
            file.close()


@pytest.mark.parametrize(
    ("leaves", "said"),
    [
        ("nothing", None),
        ("kv", "kv_tokens of"),
        ("pins", "pinned_requests of"),
        ("requests", "open_requests of"),
        ("books", "Book.entries: "),
        ("files", "open files: "),
    ],
)
def test_what_requests_leave_behind_is_named(leaves: str, said: str | None, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    endurance.add_options(parser)
    options = parser.parse_args(["--requests", "120", "--rounds", "4", "--disk", str(tmp_path)])
    options.seed = 3
    found = endurance.run(Hoarder(leaves), Prompts(50_000), options)
    assert [each["requests"] >= 30 * n for n, each in enumerate(found["rounds"], 1)] == [True] * 4
    assert len(found["fails"]) == (said is not None)
    assert all(fail.startswith(said or "") for fail in found["fails"])


@pytest.mark.parametrize(("stock", "fails"), [([1000, 1000], 1), ([1000, 1090], 0)])
def test_memory_is_held_against_what_the_stock_engine_grows_by(stock: list[int], fails: int) -> None:
    nothing = {"kv_tokens": 0, "pinned_requests": 0, "open_requests": 0, "files": 3}
    ours, theirs = ([nothing | {"memory_mib": memory} for memory in each] for each in ([2000, 2150], stock))
    books = [collections.Counter[str]()] * 2
    assert len(endurance.judge(ours, books, theirs)) == fails
    assert len(endurance.judge(ours, books)) == 1
