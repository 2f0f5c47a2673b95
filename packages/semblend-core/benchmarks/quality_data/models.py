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
    fitted: bool = False
    """With the correction that was fitted for these weights, which engines find in ``SEMBLEND_CORRECTIONS_DIR``."""
    tf32: bool = False
    """Matrix products of CUDA in TensorFloat-32: several times faster, and noisier: see the floor of each cell."""

    @property
    def name(self) -> str:
        label = SMOLLM2 if self.source is None else Path(self.source).name
        notes = [note for note, on in (("fitted", self.fitted), ("tf32", self.tf32)) if on]
        return f"{label} ({', '.join(notes)})" if notes else label

    def engine(self) -> ReferenceEngine:
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        torch.backends.cudnn.allow_tf32 = self.tf32
        engine = ReferenceEngine.load(self.source, device=self.device)
        if not self.fitted:
            engine.learned = None
        elif engine.learned is None:
            raise SystemExit(
                "--fitted: no correction was fitted for these weights; run python -m semblend_core.recompute.fit, and "
                "name its folder with SEMBLEND_CORRECTIONS_DIR"
            )
        return engine

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
