"""Text to token ids, the same in every run: a built-in tokenizer, a file, the default model's, or one from a hub.

Special tokens are never added: the ids are those of the text alone.
"""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sembench.schema import InputError
from semblend_core import TokenIds

BUILT_IN = "words-v1"
DEFAULT_MODEL = "smollm2"


_REACH_TIMEOUT_S = 5.0
_TEXTS_AT_ONCE = 64
_ALTERNATIVES = (
    f"--tokenizer takes a tokenizer.json or a folder holding one, {DEFAULT_MODEL!r} (the default model's, from the "
    f"package index), the id of a hub repository, or nothing for the built-in {BUILT_IN!r}"
)


class Tokenizer(ABC):
    """Deterministic: the same text has the same ids in every process."""

    name: str
    """What results call it."""
    digest: str
    """16 hex digits of what the ids depend on: two tokenizers of one name need not be one tokenizer."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """TokenIds in [0, 2**31 - 1], without special tokens."""

    def encode_batch(self, texts: Sequence[str]) -> Iterator[TokenIds]:
        """As ``encode``, in order, one array per text; faster for many where the tokenizer has threads."""
        return (np.array(self.encode(text), np.int32) for text in texts)


def load_tokenizer(name: str | None) -> Tokenizer:
    """None or ``words-v1``: the built-in one. Else a path, ``smollm2`` or a hub id; InputError where it is none."""
    if name is None or name == BUILT_IN:
        return WordTokenizer()
    if name.lower() == DEFAULT_MODEL:
        return _default_model_tokenizer()
    path = Path(name).expanduser()
    if path.exists():
        return _from_file(path / "tokenizer.json" if path.is_dir() else path, name)
    if path.suffix == ".json" or name.startswith((".", "/", "~")):
        raise InputError(f"--tokenizer {name}: no such file or folder; {_ALTERNATIVES}")
    return _from_hub(name)


class WordTokenizer(Tokenizer):
    """Words with the space before them, up to three digits, punctuation and white space, each one token.

    An id is 31 bits of a hash of the piece. Two pieces of a large text may therefore share an id, about once in 2**31
    pairs of different pieces: harmless for block rates, since a block needs all of its tokens to agree.
    """

    name = BUILT_IN
    digest = hashlib.sha256(BUILT_IN.encode()).hexdigest()[:16]

    _pieces = re.compile(r" ?[^\W\d_]+|\d{1,3}| ?[^\w\s]|_|\s+")

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        known = self._ids
        return [known[piece] if piece in known else self._learn(piece) for piece in self._pieces.findall(text)]

    def _learn(self, piece: str) -> int:
        hashed = hashlib.blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=4, person=b"words-v1").digest()
        self._ids[piece] = int.from_bytes(hashed, "big") >> 1
        return self._ids[piece]


class _FastTokenizer(Tokenizer):
    """One of the package ``tokenizers``."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        # What a tokenizer.json may ask for besides tokenizing would cut or fill the prompts.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.name = name
        self.digest = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> Iterator[TokenIds]:
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            batch = list(texts[start : start + _TEXTS_AT_ONCE])
            for encoding in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                yield np.array(encoding.ids, np.int32)


def _default_model_tokenizer() -> Tokenizer:
    from semblend_core import MissingExtraError
    from semblend_core.reference import load_default_tokenizer

    try:
        return _FastTokenizer(load_default_tokenizer(), DEFAULT_MODEL)
    except MissingExtraError as error:
        raise InputError(f"--tokenizer {DEFAULT_MODEL}: {error.name} is missing: {_install('embedded')}") from None
    except Exception as error:  # The download, the archive or the file in it: each fails in its own way.
        raise InputError(f"--tokenizer {DEFAULT_MODEL}: not available: {error}; {_ALTERNATIVES}") from error


def _from_file(path: Path, name: str) -> Tokenizer:
    if not path.is_file():
        raise InputError(f"--tokenizer {name}: holds no tokenizer.json (the fast format is needed); {_ALTERNATIVES}")
    try:
        return _FastTokenizer(_tokenizers(name).Tokenizer.from_file(str(path)), name)
    except InputError:
        raise
    except Exception as error:  # The package raises plain Exception for every fault of a file.
        raise InputError(f"--tokenizer {path}: not a tokenizer.json: {error}") from None


def _from_hub(name: str) -> Tokenizer:
    """From the local hub cache where it is there, else from the hub, which is tried briefly."""
    package = _tokenizers(name)
    cached = _cached_file(name)
    if cached is not None:
        return _from_file(cached, name)
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise InputError(f"--tokenizer {name}: not in the local hub cache, and HF_HUB_OFFLINE is set; {_ALTERNATIVES}")
    _check_hub_is_reachable(name)
    try:
        return _FastTokenizer(package.Tokenizer.from_pretrained(name), name)
    except Exception as error:  # Private, gone, without a tokenizer.json: the package has no error of its own for it.
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"--tokenizer {name}: the hub did not give it: {reason[0]}; {_ALTERNATIVES}") from None


def _cached_file(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "tokenizer.json")
    except ValueError as error:
        raise InputError(f"--tokenizer {name}: no file, folder or hub id: {error}; {_ALTERNATIVES}") from None
    return Path(found) if isinstance(found, str) else None


def _check_hub_is_reachable(name: str) -> None:
    # Asked first: the hub's own client repeats itself for half a minute and more before it gives up.
    import httpx

    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        httpx.head(endpoint, timeout=_REACH_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(
            f"--tokenizer {name}: not in the local hub cache, and the hub is not reachable ({error}); {_ALTERNATIVES}"
        ) from None


def _tokenizers(name: str) -> Any:
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise InputError(f"--tokenizer {name}: the package tokenizers is missing: {_install('tokenizer')}") from None
    return tokenizers


def _install(extra: str) -> str:
    return f"pip install 'sembench[{extra}]'"
