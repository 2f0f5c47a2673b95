"""A tokenizer whose tokens can be counted by eye, and items made of its letters."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sembench.offline.peer import PEER_VERSION, PYTHON_VARIABLE
from sembench.schema import DonorPrompt, ManifestItem
from sembench.tokenization import Tokenizer

MakeItem = Callable[..., ManifestItem]


class Letters(Tokenizer):
    """One token per character, its code point."""

    name = "letters"
    digest = "0" * 16

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def hex_id(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@pytest.fixture
def letters() -> Tokenizer:
    return Letters()


@pytest.fixture
def make_item() -> MakeItem:
    def make(name: str, donors: Sequence[str], recipient: str, transform: str = "rag_reorder") -> ManifestItem:
        return ManifestItem(
            item_id=hex_id("item", name),
            dataset="test",
            source_id=name,
            transform=transform,
            donor_prompts=tuple(
                DonorPrompt(donor_id=hex_id("donor", name, place), text=text, label="donor")
                for place, text in enumerate(donors)
            ),
            recipient_prompt=recipient,
            input="",
            answers=(),
            negative_control=transform == "negative_control",
        )

    return make


@pytest.fixture
def distinct() -> Callable[[int, int], str]:
    """``distinct(start, length)``: letters that occur nowhere else than in an overlapping range."""
    return lambda start, length: "".join(chr(0x4E00 + start + place) for place in range(length))


@pytest.fixture(scope="session")
def peer_python() -> Path:
    """The Python of an environment with the peer: the one that is named, else one made once and kept."""
    if os.environ.get(PYTHON_VARIABLE):
        return Path(os.environ[PYTHON_VARIABLE])
    cache = Path(os.environ.get("SEMBLEND_MODEL_CACHE") or "~/.cache/semblend").expanduser()
    kept = cache / "peers" / f"environment-{PEER_VERSION}-py{sys.version_info.major}{sys.version_info.minor}"
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            made = Path(scratch) / "environment"
            install = [str(made / "bin" / "python"), "-m", "pip", "install", "--quiet", f"semblend=={PEER_VERSION}"]
            try:
                subprocess.run([sys.executable, "-m", "venv", str(made)], check=True, timeout=120)
                subprocess.run(install, check=True, timeout=300)
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"the peer could not be installed ({error}); {PYTHON_VARIABLE} may name one that is")
            made.rename(kept)
    return kept / "bin" / "python"
