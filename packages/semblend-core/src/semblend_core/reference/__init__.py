"""What needs a real model (extra ``reference``): the default model, SmolLM2-135M-Instruct, and its tokenizer."""

from semblend_core.reference.smollm2 import SMOLLM2, default_model_file, load_default_tokenizer

__all__ = ["SMOLLM2", "default_model_file", "load_default_tokenizer"]
