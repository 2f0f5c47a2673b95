"""A model with its tokenizer, opened once for a whole run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sembench.embedded.config import EmbeddedConfig, EmbeddedTemplate
from sembench.schema import InputError
from semblend_core import Namespace, TokenIds, as_token_ids
from semblend_core import __version__ as core_version

if TYPE_CHECKING:
    from semblend_core.reference import ReferenceEngine


class EmbeddedModel:
    """Text in, tokens to the engine, text out."""

    def __init__(self, engine: ReferenceEngine, tokenizer: Any, config: EmbeddedConfig, name: str) -> None:
        self.engine = engine
        self.name = name
        self._tokenizer = tokenizer
        self._template: EmbeddedTemplate = config.template
        self._dtype, self._block_size = config.dtype, config.block_size
        self.namespace = self.namespace_of("embedded")  # One client, who shares with itself.

    @classmethod
    def open(cls, config: EmbeddedConfig) -> EmbeddedModel:
        import torch
        from transformers.utils import logging as transformers_logging

        from semblend_core.reference import SMOLLM2, ReferenceEngine, UnsupportedModelError

        if config.device.startswith("cuda") and not torch.cuda.is_available():
            raise InputError("--device cuda: torch sees no GPU here; use --device cpu")
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        logging.getLogger("transformers").setLevel(logging.ERROR)
        try:
            engine = ReferenceEngine.load(config.model, device=config.device, dtype=config.dtype)
            tokenizer = _tokenizer(config.model)
        except (RuntimeError, OSError, UnsupportedModelError) as error:  # Not there, not fetched, not written, no room.
            raise InputError(f"--model: {error}") from None
        if config.template == "chat" and not getattr(tokenizer, "chat_template", None):
            raise InputError(f"--template chat: {config.model} has no chat template; use --template none")
        return cls(engine, tokenizer, config, config.model or SMOLLM2)

    def namespace_of(self, salt: str | None) -> Namespace:
        """What a client with this salt may share in."""
        return Namespace(
            model=self.name,
            revision="local",
            tokenizer=self.name,
            dtype=self._dtype,
            kv_layout="tokens-heads-dim",
            block_size=self._block_size,
            adapter=None,
            salt=salt,
        )

    def encode(self, prompt: str) -> TokenIds:
        """A prompt of the manifest as the model is given it."""
        return self.encode_text(prompt if self._template == "none" else self._as_message(prompt))

    def encode_text(self, text: str) -> TokenIds:
        """Without a template: as it stands inside a prompt."""
        return as_token_ids(np.array(self._tokenizer(text, add_special_tokens=False)["input_ids"], np.int32))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def describe(self) -> dict[str, Any]:
        """What the engine says of itself."""
        import torch

        geometry = self.engine.geometry
        return {
            "name": "semblend reference engine",
            "version": core_version,
            "model": self.name,
            "dtype": str(geometry.dtype).removeprefix("torch."),
            "layers": geometry.layers,
            "max_tokens": self.engine.max_tokens,
            "threads": torch.get_num_threads() if geometry.device.type == "cpu" else None,
        }

    @property
    def device(self) -> str:
        """In words, for the run's identity."""
        import torch

        device = self.engine.geometry.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type

    def _as_message(self, prompt: str) -> str:
        message = [{"role": "user", "content": prompt}]
        return str(self._tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))


def _tokenizer(model: str | None) -> Any:
    from transformers import AutoTokenizer

    from semblend_core.reference import ModelNotLoadedError, default_model_folder

    source = default_model_folder() if model is None else Path(model).expanduser()
    where = {"gguf_file": source.name} if source.suffix == ".gguf" else {}
    name = str(source.parent) if where else str(source) if source.exists() else str(model)
    try:
        return AutoTokenizer.from_pretrained(name, **where)
    except (OSError, ValueError) as error:
        raise ModelNotLoadedError(f"{model} has no tokenizer that can be read: {str(error).splitlines()[0]}") from None
