"""The model under study and its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from semblend_core.reference import SMOLLM2, ReferenceEngine, load_default_tokenizer


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """None is SmolLM2. Weights of any type are computed in float32, so that noise is small beside what is measured."""

    source: str | None
    device: str
    tf32: bool = False
    """Matrix products of CUDA in TensorFloat-32: several times faster, and noisier: see the floor of each cell."""

    @property
    def name(self) -> str:
        label = SMOLLM2 if self.source is None else Path(self.source).name
        return f"{label} (tf32)" if self.tf32 else label

    def engine(self) -> ReferenceEngine:
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        torch.backends.cudnn.allow_tf32 = self.tf32
        return ReferenceEngine.load(self.source, device=self.device)

    def tokenizer(self) -> TextTokenizer:
        if self.source is None:
            return TextTokenizer(load_default_tokenizer())
        file = Path(self.source).expanduser() / "tokenizer.json"
        if file.is_file():
            from tokenizers import Tokenizer

            return TextTokenizer(Tokenizer.from_file(str(file)))
        from transformers import AutoTokenizer

        return TextTokenizer(AutoTokenizer.from_pretrained(self.source).backend_tokenizer)


class TextTokenizer:
    """Text to token ids and back, without special tokens of its own."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))
