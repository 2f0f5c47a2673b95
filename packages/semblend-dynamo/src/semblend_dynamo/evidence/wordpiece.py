"""Text to the word pieces that MiniLM reads."""

from __future__ import annotations

import gzip
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semblend_dynamo.evidence.embedder import EvidenceError


class WordPieces:
    """A tokenizer without truncation or padding: windows are cut from the ids of the whole text."""

    def __init__(self, tokenizer_json: Path | None = None) -> None:
        self._tokenizer = _load(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.start_id = self._special("[CLS]")
        self.end_id = self._special("[SEP]")

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """All piece ids of ``text``, without the start and end pieces."""
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def _special(self, piece: str) -> int:
        found = self._tokenizer.token_to_id(piece)
        if found is None:
            raise EvidenceError(f"the tokenizer of SEMBLEND_EMBED_MODEL has no {piece}: it is not a BERT tokenizer")
        return int(found)


def _load(tokenizer_json: Path | None) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise EvidenceError("the minilm embedder needs tokenizers: pip install 'semblend-dynamo[onnx]'") from error
    if tokenizer_json is not None:
        return tokenizers.Tokenizer.from_file(str(tokenizer_json))
    model = tokenizers.models.WordPiece(bundled_vocabulary(), unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer


def bundled_vocabulary() -> dict[str, int]:
    """Uncased BERT: piece to id."""
    packed = resources.files("semblend_dynamo.evidence").joinpath("data", "bert-uncased-vocab.txt.gz").read_bytes()
    return {piece: index for index, piece in enumerate(gzip.decompress(packed).decode().splitlines())}
