"""The public package ``semblend``, asked over pipes. Run by the Python that has it installed, never imported.

Reads one JSON object per line and answers each with one. The peer finds donors by sentence embeddings. Where its model
is installed it is used; else a stand-in answers to its name with hashed words, which shows how the peer's code works on
donors that share words, and says nothing about its model.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import sys
import time
import types
from importlib import metadata
from typing import Any

import numpy as np

_DIMENSION, _WINDOW = 384, 256  # Of the peer's model: length of a vector, and words that it reads of one text.


class HashedWords:
    """As much of a sentence-transformers model as the peer uses."""

    max_seq_length = _WINDOW

    def __init__(self) -> None:
        self._words: dict[int, str] = {}
        self.tokenizer = types.SimpleNamespace(encode=self._pieces, decode=self._text)

    def encode(self, texts: str | list[str], **options: Any) -> Any:
        if not isinstance(texts, str):
            return np.stack([self.encode(text) for text in texts])
        counts = np.zeros(_DIMENSION, np.float32)
        for number in self._pieces(texts)[: _WINDOW - 2]:
            counts[number % _DIMENSION] += 1.0 if number >> 20 & 1 else -1.0
        return counts / max(float(np.linalg.norm(counts)), 1e-9)

    def _pieces(self, text: str, **options: Any) -> list[int]:
        numbers = []
        for word in re.findall(r"\w+|[^\w\s]", text.lower()):
            number = int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=4).digest(), "big")
            self._words[number] = word
            numbers.append(number)
        return numbers

    def _text(self, numbers: list[int], **options: Any) -> str:
        return " ".join(self._words[number] for number in numbers)


def choose_embedder() -> str:
    try:
        module: Any = importlib.import_module("sentence_transformers")
        module.SentenceTransformer("all-MiniLM-L6-v2")
        return "minilm"
    except Exception:  # Not installed, or its model is not at hand and no hub is reachable.
        model = HashedWords()
        stand_in: Any = types.ModuleType("sentence_transformers")
        stand_in.SentenceTransformer = lambda *args, **options: model
        sys.modules["sentence_transformers"] = stand_in
        return "hashed-words"


def runs_of(found: Any) -> list[tuple[int, str, int, int]]:
    """What it would copy, as ``(target_start, donor_id, donor_start, length)``, in the order of targets."""
    runs: list[tuple[int, str, int, int]] = []
    actions = found.slot_actions if found.found else ()
    for action in sorted(actions, key=lambda each: int(each["targetPos"])):
        if action["action"] != "copy_from_donor":
            continue
        target, place = int(action["targetPos"]), int(action["donorPos"])
        donor = str(action.get("donorId") or found.donor_id)
        start, last_donor, donor_start, length = runs[-1] if runs else (0, "", 0, 0)
        if (target, donor, place) == (start + length, last_donor, donor_start + length):
            runs[-1] = (start, donor, donor_start, length + 1)
        else:
            runs.append((target, donor, place, 1))
    return runs


class Worker:
    def __init__(self, options: dict[str, Any]) -> None:
        self._pipeline: Any = importlib.import_module("semblend_core").SemBlendPipeline(**options)
        # Its first calls import modules and load the model: no lookup should pay for that.
        self._pipeline.register_donor("warm-up", list(range(512)), "warm up")
        self._pipeline.find_donor(list(range(1, 513)), "warm up")
        self._pipeline.clear_donors()

    def answer(self, call: dict[str, Any]) -> dict[str, Any]:
        if call["do"] == "register":
            self._pipeline.register_donor(call["id"], call["tokens"], call["text"])
            return {}
        if call["do"] == "clear":
            self._pipeline.clear_donors()
            return {}
        started = time.perf_counter()
        found = self._pipeline.find_donor(call["tokens"], call["text"])
        elapsed = (time.perf_counter() - started) * 1e6
        return {"runs": runs_of(found), "reason": found.rejection_reason, "elapsed_us": elapsed}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Whatever the peer prints goes to the error stream.
    options = json.loads(sys.argv[1])
    embedder = choose_embedder()
    worker = Worker(options)
    hello = {"version": metadata.version("semblend"), "embedder": embedder, "python": sys.version.split()[0]}
    print(json.dumps(hello), file=answers, flush=True)
    for line in sys.stdin:
        try:
            reply = worker.answer(json.loads(line))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
