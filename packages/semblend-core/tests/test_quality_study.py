"""The quality study asks what it says: prompts share what is meant, arms are what core runs, bars are bars."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from semblend_core import Plan, Span
from semblend_core.serving import PROBED_RUN

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("needs the benchmarks", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

from quality_data import bars, design, facts, figures, records  # noqa: E402
from quality_data.answers import usefulness  # noqa: E402
from quality_data.cases import TRANSFORMS, Cases  # noqa: E402
from quality_data.sources import Sources  # noqa: E402

GRAM = 32


class Words:
    """Words, blanks and marks as tokens."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        return [self._ids.setdefault(piece, len(self._ids)) for piece in re.findall(r" ?\w+|\s+|[^\w\s]", text)]

    def decode(self, tokens: Any) -> str:
        pieces = list(self._ids)
        return "".join(pieces[token] for token in tokens)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cases, Words]:
    folder, chance = tmp_path_factory.mktemp("text"), random.Random(1)

    def prose(words: int) -> str:
        said = [chance.choice("abcdefghij") + str(chance.randrange(4000)) for _ in range(words)]
        return " ".join(f"{word}. Then" if place % 14 == 13 else word for place, word in enumerate(said))

    meetings = [
        {
            "meeting_transcripts": [{"speaker": "A", "content": prose(60)} for _ in range(40)],
            "specific_query_list": [{"query": "What?", "answer": "That.", "relevant_text_span": [["1", "2"]]}],
            "general_query_list": [{"query": "Why?", "answer": "So."}],
        }
        for _ in range(8)
    ]
    (folder / "meetings.jsonl").write_text("\n".join(map(json.dumps, meetings)))
    paragraphs = [
        {"context": prose(120), "qas": [{"question": "Who?", "answers": [{"answer_start": 3, "text": "me"}]}]}
        for _ in range(240)
    ]
    articles = [{"title": f"t{at}", "paragraphs": paragraphs[at : at + 30]} for at in range(0, 240, 30)]
    (folder / "articles.json").write_text(json.dumps({"data": articles}))
    for number in range(6):
        (folder / f"paper-{number}.rst").write_text(prose(4000))
    words = Words()
    return Cases(Sources(folder, words.encode), words.encode, words.decode, 1000), words


def grams(tokens: tuple[int, ...]) -> set[tuple[int, ...]]:
    return {tokens[at : at + GRAM] for at in range(len(tokens) - GRAM + 1)}


@pytest.mark.parametrize("transform", [name for name in TRANSFORMS if name != "entity_swap"])
def test_a_prompt_has_its_length_and_its_donors_hold_most_of_it(made: tuple[Cases, Words], transform: str) -> None:
    for case in made[0].of(transform, 0, 2):
        assert 1000 <= len(case.recipient) < 1200
        known = set().union(*map(grams, case.donors.values()))
        shared = sum(gram in known for gram in grams(case.recipient)) / len(grams(case.recipient))
        assert shared > 0.5
        assert case.recipient not in case.donors.values()


def test_each_of_ten_passages_comes_from_another_donor(made: tuple[Cases, Words]) -> None:
    (case,) = made[0].of("composite_10", 1, 1)
    assert len(case.donors) == 10
    held = [len(grams(donor) & grams(case.recipient)) for donor in case.donors.values()]
    assert min(held) > 50
    assert max(held) < 120


def test_cases_from_a_number_on_are_those_of_the_whole_list(made: tuple[Cases, Words]) -> None:
    whole = made[0].of("reorder_10", 0, 4)
    assert made[0].of("reorder_10", 2, 2) == whole[2:]
    assert len({case.recipient for case in whole}) == 4
    with pytest.raises(SystemExit, match="lower --cases"):
        made[0].of("reorder_10", 0, 10_000)


def test_a_changed_fact_stands_in_the_recipient_and_the_old_one_in_the_donor(made: tuple[Cases, Words]) -> None:
    cases, words = made
    for number, case in enumerate(cases.of("edited_fact", 0, 6)):
        fact = facts.changed_fact(number)
        (donor,) = (words.decode(tokens) for tokens in case.donors.values())
        assert fact.before in donor
        assert fact.now not in donor
        assert fact.now in words.decode(case.recipient)
        assert fact.before not in words.decode(case.recipient)
        assert fact.rule in donor
    for case in cases.of("absent_fact", 0, 3):
        assert case.outdated in words.decode(next(iter(case.donors.values())))
        assert "not stated" in words.decode(case.recipient)


@pytest.mark.parametrize("number", range(40))
def test_a_changed_fact_changes_its_answer_and_its_consequence(number: int) -> None:
    fact = facts.changed_fact(number)
    assert fact.answer != fact.outdated
    (kind,) = [each for each in facts.KINDS if each.rule == fact.rule]
    if number % 2 == 0:
        assert fact.answer in fact.now
        assert fact.outdated in fact.before
    else:
        figure = int(next(iter(re.findall(r"\d+", fact.now))))
        assert fact.answer == (kind.if_high if figure in kind.high else kind.if_low)


@pytest.mark.parametrize(
    ("judge", "text", "answer", "outdated", "expected"),
    [
        ("quote", 'It says: "One two, three."', "One two three", "", 1),
        ("quote", "One two four.", "One two three", "", 0),
        ("fact", "It is 620 euros.", "620", "120", 1),
        ("fact", "It was 120, now 620.", "620", "120", 0),
        ("fact", "It is 6200 euros.", "620", "120", 0),
        ("fact", "620? No, it is 120.", "620", "120", 0),
        ("fact", "Lorries cross it. At every other bridge they take the tunnel.", "cross", "tunnel", 1),
        ("fact", "Lorries cross it.\nAt every other bridge\nthey take the tunnel.", "cross", "tunnel", 1),
        ("fact", "They sail from the front\ndesk.", "front desk", "pier", 1),
        ("fact", "Lorries cross a heavy bridge. So they take the tunnel.", "cross", "tunnel", 0),
        ("fact", "Lorries cross a heavy bridge. At every other bridge they take the tunnel.", "cross", "tunnel", 0),
        ("absent", "The text does not say.", "not stated", "120", 1),
        ("absent", "Not stated.", "not stated", "120", 1),
        ("absent", "It is 120.", "not stated", "120", 0),
        ("words", "violence\nand more", "violence", "", 1),
    ],
)
def test_an_answer_is_useful_by_what_it_says(judge: str, text: str, answer: str, outdated: str, expected: int) -> None:
    rule = "Lorries cross a heavy bridge. At every other bridge they take the tunnel."
    assert usefulness(judge, text, answer, outdated, rule) == expected


REORDERED = Plan.over("r", 700, 0, [Span(10, "a", 400, 300), Span(320, "a", 0, 300)])


def test_an_arm_is_a_tier_a_policy_or_an_expression_over_core() -> None:
    names = {
        "balanced": ("balanced@tier", 0.5),
        "balanced@0.3": ("balanced@0.3", 0.3),
        "balanced@0.08": ("balanced@0.08", 0.08),
        "rotate_only": ("rotate_only@0", 0.0),
        "kv_deviation": ("kv_deviation@0.15", 0.15),
        "Corrected(SeamHead(24))@0.1": ("Corrected(SeamHead(24))@0.1", 0.1),
    }
    for arm, expected in names.items():
        trial = design.trial_of(arm, REORDERED, 0.15)
        assert trial is not None
        assert (trial.key, trial.budget) == expected
    unprobed = design.trial_of("balanced_unprobed", REORDERED, 0.15)
    assert unprobed is not None
    assert not unprobed.policy.needs_probe
    in_runs = design.trial_of("balanced_in_runs@0.3", REORDERED, 0.15)
    assert in_runs is not None
    assert in_runs.policy.needs_probe
    assert (in_runs.key, in_runs.run) == ("balanced_in_runs@0.3", PROBED_RUN)
    of_two = design.trial_of("balanced_in_runs_of_2", REORDERED, 0.15)
    assert of_two is not None
    assert (of_two.key, of_two.run) == ("balanced_in_runs_of_2@tier", 2)
    rival = design.trial_of("kv_deviation", REORDERED, 0.15)
    assert rival is not None
    assert not rival.whole_steps, "charged by whole steps, it could never afford its probe"
    assert design.trial_of("strict", REORDERED, 0.15) is None, "a tier that declines"
    for wrong in ("no_such", "Span", "__import__('os')"):
        with pytest.raises(SystemExit, match="--arms"):
            design.check_arms([wrong])


def test_rivals_have_the_budget_of_the_balanced_tier() -> None:
    cells = {"instruction_variant": 0.15, "edited_fact": 0.15, "reorder_4": 0.25, "composite_4_shared_sink": 0.25}
    many = {"reorder_8": 0.3, "composite_10": 0.3, "copy_verbatim": 0.3}
    for transform, budget in {**cells, **many}.items():
        assert design.equal_budget(transform, 6000) == budget
    assert design.equal_budget("copy_verbatim", 1300) == 0.5


def test_every_named_policy_is_there() -> None:
    design.check_arms(design.ALL_ARMS)
    for name in design.POLICIES:
        assert design.policy_of(name).name == name


def record(number: int, trials: dict[str, float], **more: Any) -> records.Record:
    """Trials by their KL."""
    return {
        "model": "m",
        "cell": "composite_10@6000",
        "transform": "composite_10",
        "prompt_tokens": 6000,
        "continuation_tokens": 64,
        "number": number,
        "arms": sorted(trials),
        "cold_answer": 1.0,
        "trials": {
            key: {"kl": kl, "kl_max": kl, "top1": 0.98, "equal": 1.0, "ppl_ratio": 1.0, "recompute": 0.15}
            | {"flops_saved": 0.8, "ttft_ratio": None, "answer": 1.0}
            for key, kl in trials.items()
        },
        **more,
    }


def test_what_several_runs_measured_of_one_case_is_put_together(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    records.append_record(file, record(0, {"rotate_only@0": 0.1}, floor={"kl": 1e-8}))
    records.append_record(file, record(1, {"rotate_only@0": 0.1}))
    records.append_record(file, record(0, {"balanced@tier": 0.02}))
    merged = records.read_records([file])
    assert [sorted(each["trials"]) for each in merged] == [["balanced@tier", "rotate_only@0"], ["rotate_only@0"]]
    assert merged[0]["arms"] == ["balanced@tier", "rotate_only@0"]
    assert merged[0]["floor"] == {"kl": 1e-8}


@pytest.mark.parametrize(("kl", "cases", "verdict"), [(0.02, 40, "holds"), (0.03, 40, "FAILS"), (0.02, 39, "needs")])
def test_a_bar_is_judged_by_its_cell_and_only_by_enough_cases(kl: float, cases: int, verdict: str) -> None:
    arms = {"rotate_only@0": 0.1, "balanced@tier": kl, "kv_deviation@0.3": 0.08}
    said = figures.figures_of([record(number, arms) for number in range(cases)])
    cell = said["m"]["composite_10@6000"]
    assert cell["arms"]["balanced@tier"]["kl_cut"] == pytest.approx(1 - kl / 0.1)
    assert cell["against"]["balanced@tier"]["CacheBlend's rule"]["kl_ratio"] == pytest.approx(kl / 0.08)
    lines = [line for line in bars.judged(said) if "KL cut" in line]
    assert len(lines) == 1
    assert lines[0].startswith(verdict)


def test_the_cells_of_the_bars_are_those_that_are_judged() -> None:
    measured = {cell.name for cell in design.bar_cells(40, 24)}
    assert measured == {*bars.CUT, *bars.KL, *bars.ANSWER_LOSS}
