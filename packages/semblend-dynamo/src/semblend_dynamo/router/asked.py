"""One request as policies see it: who asks, and what its prompt is made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from semblend_core import Namespace, TokenIds, as_token_ids
from semblend_core.prompts import START_WEIGHTS, BlockType, PromptBlock, segment_request
from semblend_dynamo.gateway.secret_file import ConfigurationError

Encode: TypeAlias = Callable[[str], Sequence[int]]
Ids: TypeAlias = npt.NDArray[np.int64]
_WORD = re.compile(r"\w+|[^\w\s]")
_IDS = 0x7FFF_FFFE
_ONE = START_WEIGHTS[BlockType.RETRIEVED_CONTEXT]
"""A token of retrieved context counts for one."""


@dataclass(frozen=True)
class Asked:
    request_id: str
    model: str
    circle: str | None
    """Those among whom prompts may be found again; None: it shares with nobody."""
    session: str
    body: Mapping[str, Any]
    reading: Reading

    @cached_property
    def blocks(self) -> tuple[PromptBlock, ...]:
        # Nobody here asks how many tokens a block has: the cheapest count will do.
        return segment_request(self.body, count_tokens=len)

    @cached_property
    def token_ids(self) -> TokenIds:
        return self.reading.token_ids(self)

    @cached_property
    def token_weights(self) -> npt.NDArray[np.float64]:
        """What each of ``token_ids`` counts for."""
        return self.reading.token_weights(self)

    @property
    def tokens(self) -> int:
        return int(self.token_ids.size)

    @cached_property
    def ids_by_block(self) -> list[tuple[BlockType, Ids]]:
        given: Any = self.body.get("prompt")
        if _are_ids(given):
            return [(BlockType.OTHER, np.array(given, dtype=np.int64))]
        return [(block.type, self.reading.ids_of(block.text)) for block in self.blocks]

    @cached_property
    def namespace(self) -> Namespace:
        """Prompts of one namespace may be found again by each other."""
        return Namespace(
            model=self.model or "unnamed",
            revision="any",
            tokenizer=self.reading.name,
            dtype="any",
            kv_layout="any",
            block_size=1,
            adapter=None,
            salt=self.circle,
        )


class Reading:
    """How prompts become ids and weights: by the model's tokenizer where it is known, else word by word."""

    def __init__(self, encode: Encode | None = None, weights: Mapping[BlockType, float] = START_WEIGHTS) -> None:
        self._encode = encode
        self.name = "words" if encode is None else "tokens"
        self._weights = {type: value / _ONE for type, value in weights.items()}

    def ids_of(self, text: str) -> Ids:
        return ids_of_words(text) if self._encode is None else np.array(self._encode(text), dtype=np.int64)

    def token_ids(self, asked: Asked) -> TokenIds:
        found = [ids for _, ids in asked.ids_by_block]
        return as_token_ids(np.concatenate(found) if found else [])

    def token_weights(self, asked: Asked) -> npt.NDArray[np.float64]:
        lengths = [len(ids) for _, ids in asked.ids_by_block]
        return np.repeat([self._weights[type] for type, _ in asked.ids_by_block], lengths)


def ids_of_words(text: str) -> Ids:
    """The same word is the same id for the life of this process, and only there."""
    words = _WORD.findall(text)
    return np.fromiter(map(hash, words), dtype=np.int64, count=len(words)) & _IDS


def open_tokenizer(path: str, variable: str) -> Encode:
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
    except ImportError:
        raise ConfigurationError(f"{variable} needs the extra `onnx`: pip install 'semblend-dynamo[onnx]'") from None
    except Exception as error:  # The library raises bare ones.
        raise ConfigurationError(f"{variable}={path!r} is no tokenizer ({type(error).__name__})") from None

    def encode(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def weights_in(text: str, variable: str) -> dict[BlockType, float]:
    weights = dict(START_WEIGHTS)
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = part.partition("=")
        try:
            weights[BlockType(name.strip())] = _weight(value)
        except ValueError:
            known = ", ".join(BlockType)
            raise ConfigurationError(
                f"{variable}: {part!r} is no weight; write type=number (0 to 100), the type one of {known}"
            ) from None
    return weights


def _weight(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 100:
        raise ValueError
    return value


def _are_ids(given: object) -> bool:
    return isinstance(given, list) and bool(given) and all(type(each) is int and 0 <= each <= _IDS for each in given)
