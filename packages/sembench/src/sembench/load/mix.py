"""What is asked: recipients of donors that were served before, and prompts that share nothing with any other."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sembench.schema import InputError, ManifestItem


@dataclass(frozen=True)
class Draw:
    prompt: str
    item_id: str | None
    """The recipient's item; None for a prompt that shares nothing."""


class PromptMix:
    """Draws prompts, a ``reuse_share`` of them recipients.

    Every prompt starts with a line of its own, so that a recipient that is drawn again cannot be answered from the
    engine's exact prefix cache: what it saves, it saves by reuse. Which recipients are drawn follows the seed; texts
    that must be new do not, or a second run would find them in the server's cache.
    """

    def __init__(self, items: Sequence[ManifestItem], reuse_share: float, seed: int) -> None:
        self.reuse_share = reuse_share
        self.recipients = [item for item in items if item.donor_prompts and not item.negative_control]
        if reuse_share > 0 and not self.recipients:
            raise InputError("the manifest has no recipient with donors: only --reuse-share 0 can be run on it")
        self._random = random.Random(f"{seed} {reuse_share}")
        self._order: list[ManifestItem] = []
        self._lengths = [len(item.recipient_prompt.split()) for item in items]
        words = sorted({word for item in items for word in item.recipient_prompt.split()})
        self._words = np.array(words, dtype=object)
        self._fresh = np.random.default_rng()

    @property
    def donors(self) -> list[str]:
        """What has to be served before recipients can reuse anything, each once."""
        return list(dict.fromkeys(donor.text for item in self.recipients for donor in item.donor_prompts))

    def draw(self) -> Draw:
        reuse = self._random.random() < self.reuse_share
        item = self._next_recipient() if reuse else None
        text = item.recipient_prompt if item else self._unlike_any_other()
        return Draw(f"Request {secrets.token_hex(8)}.\n{text}", item.item_id if item else None)

    def _next_recipient(self) -> ManifestItem:
        """All in a random order before any comes again."""
        if not self._order:
            self._order = self._random.sample(self.recipients, len(self.recipients))
        return self._order.pop()

    def _unlike_any_other(self) -> str:
        """As long as some recipient, of the manifest's own words in random order: no run of them comes twice."""
        chosen = self._fresh.integers(len(self._words), size=self._random.choice(self._lengths))
        return " ".join(self._words[chosen].tolist())
