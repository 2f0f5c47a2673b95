"""Prompts of ten passages, some of them repeated or near-copies, and what of them earlier prompts hold at most."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Encode = Callable[[str], Sequence[int]]

PASSAGES = 10
"""Of one prompt."""
TOPIC = (2, 8)
"""Different passages that the prompts of one workload draw from: fewer than a prompt holds, so some come again."""
PASSAGE_WORDS = (80, 500)
MOST_VERSIONS = 8
"""Of one passage: the text itself and near-copies of it."""
MOST_EDITS = 8
"""Words that a near-copy changes."""


@dataclass(frozen=True)
class Workload:
    """A prompt and the earlier ones, oldest first."""

    prompt: Ids
    donors: list[Ids]


def build_workload(documents: Sequence[str], seed: int, encode: Encode) -> Workload:
    chance = random.Random(seed)
    topic = [_versions(_passage(documents, chance), chance) for _ in range(chance.randint(*TOPIC))]
    prompts = [_prompt(topic, chance) for _ in range(chance.randint(4, 16) + 1)]
    ids = [np.array(encode(text), np.int32) for text in prompts]
    return Workload(ids[-1], ids[:-1])


def most_reusable(prompt: Ids, donors: Sequence[Ids], min_span: int) -> int:
    """Tokens in the best set of pieces that do not overlap, each ``min_span`` tokens or more of one donor in a row."""
    reach = _reach(prompt, donors, min_span)
    best = np.zeros(prompt.size + 1, np.int64)  # Behind each position.
    places = np.arange(prompt.size + 1)
    for start in range(prompt.size - 1, -1, -1):
        best[start] = best[start + 1]
        ends = slice(start + min_span, reach[start] + 1)
        if ends.start < ends.stop:
            best[start] = max(best[start], int((places[ends] + best[ends]).max()) - start)
    return int(best[0])


def _reach(prompt: Ids, donors: Sequence[Ids], min_span: int) -> npt.NDArray[np.int64]:
    """The farthest end of a run through each position, of all runs that any donor shares with the prompt."""
    reach = np.arange(prompt.size)
    for donor in donors:
        places: dict[bytes, list[int]] = defaultdict(list)
        for start in range(donor.size - min_span + 1):
            places[donor[start : start + min_span].tobytes()].append(start)
        open_runs: set[int] = set()  # By their shift.
        for start in range(prompt.size - min_span + 1):
            shifts = {place - start for place in places.get(prompt[start : start + min_span].tobytes(), ())}
            for shift in shifts - open_runs:
                end = start + _equal(prompt[start:], donor[start + shift :])
                reach[start:end] = np.maximum(reach[start:end], end)
            open_runs = shifts
    return reach


def _equal(ours: Ids, theirs: Ids) -> int:
    size = min(ours.size, theirs.size)
    differing = (ours[:size] != theirs[:size]).nonzero()[0]
    return int(differing[0]) if differing.size else size


def _passage(documents: Sequence[str], chance: random.Random) -> str:
    words = chance.choice(documents).split(" ")
    length = min(chance.randint(*PASSAGE_WORDS), len(words))
    start = chance.randrange(len(words) - length + 1)
    return " ".join(words[start : start + length])


def _versions(passage: str, chance: random.Random) -> list[str]:
    return [passage, *(_edited(passage, chance) for _ in range(chance.randrange(MOST_VERSIONS)))]


def _edited(passage: str, chance: random.Random) -> str:
    words = re.split(r"(\s+)", passage)
    for _ in range(chance.randint(1, MOST_EDITS)):
        words[chance.randrange(0, len(words), 2)] = chance.choice(words[::2])
    return "".join(words)


def _prompt(topic: list[list[str]], chance: random.Random) -> str:
    passages = [chance.choice(chance.choice(topic)) for _ in range(PASSAGES)]
    named = "\n\n".join(f"[Passage {number}]\n{passage}" for number, passage in enumerate(passages, 1))
    return f"Answer from these passages, request {chance.random()}.\n\n{named}\n\nQuestion {chance.random()}?"
