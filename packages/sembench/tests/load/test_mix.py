from __future__ import annotations

from itertools import islice

import pytest

from sembench.load.loops import PromptMix
from sembench.schema import InputError, ManifestItem


def runs_of(text: str, length: int) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[n : n + length]) for n in range(len(words) - length + 1)}


def test_without_reuse_no_prompt_shares_a_run_of_words_with_another_or_with_the_manifest(
    items: list[ManifestItem],
) -> None:
    mix = PromptMix(items, 0.0, seed=1)
    seen: set[tuple[str, ...]] = set()
    for item in items:
        seen |= runs_of(item.recipient_prompt, 6)
    for _ in range(50):
        draw = mix.draw()
        assert draw.item_id is None
        found = runs_of(draw.prompt, 6)
        assert not found & seen
        seen |= found


def test_without_reuse_prompts_are_as_long_as_the_recipients(items: list[ManifestItem]) -> None:
    lengths = {len(item.recipient_prompt.split()) for item in items}
    drawn = {len(PromptMix(items, 0.0, seed=1).draw().prompt.splitlines()[1].split()) for _ in range(20)}
    assert drawn <= lengths


def test_with_reuse_every_recipient_is_drawn_before_one_comes_again_and_no_control_is(
    items: list[ManifestItem],
) -> None:
    mix = PromptMix(items, 1.0, seed=1)
    drawn = [mix.draw() for _ in range(15)]
    recipients = {item.item_id: item for item in items if not item.negative_control}
    for round_of in (drawn[:5], drawn[5:10], drawn[10:]):
        assert {draw.item_id for draw in round_of} == set(recipients)
    for draw in drawn:
        assert draw.item_id is not None
        assert draw.prompt.endswith(recipients[draw.item_id].recipient_prompt)


def test_every_prompt_starts_with_a_line_of_its_own(items: list[ManifestItem]) -> None:
    mix = PromptMix(items, 0.5, seed=1)
    assert len({mix.draw().prompt.splitlines()[0] for _ in range(100)}) == 100


def test_the_share_is_kept_and_the_seed_decides_the_order(items: list[ManifestItem]) -> None:
    mix = PromptMix(items, 0.5, seed=3)
    order = [mix.draw().item_id for _ in range(400)]
    assert 140 < sum(item is not None for item in order) < 260
    again, other = PromptMix(items, 0.5, seed=3), PromptMix(items, 0.5, seed=4)
    assert [again.draw().item_id for _ in range(400)] == order
    assert [other.draw().item_id for _ in range(400)] != order


def test_two_runs_with_one_seed_never_send_the_same_prompt(items: list[ManifestItem]) -> None:
    first, second = (PromptMix(items, 0.5, seed=3) for _ in range(2))
    prompts = [mix.draw().prompt for mix in (first, second) for _ in range(50)]
    assert len(set(prompts)) == 100


def test_donors_are_those_of_recipients_each_once(items: list[ManifestItem]) -> None:
    donors = PromptMix([*items, items[0]], 1.0, seed=1).donors
    assert donors == [item.donor_prompts[0].text for item in islice(items, 5)]


def test_a_manifest_without_recipients_is_refused_for_reuse_only(items: list[ManifestItem]) -> None:
    controls = [item for item in items if item.negative_control]
    PromptMix(controls, 0.0, seed=1).draw()
    with pytest.raises(InputError, match="only --reuse-share 0"):
        PromptMix(controls, 0.5, seed=1)
