"""A model that takes images, whose positions have three parts, around layers of SmolLM2."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from semblend_core.testing.shallow_model import shallow_model_folder

MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
"""Tokens that SmolLM2 does not have."""
_MARK_FIELDS = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")


def write_vision_model(folder: Path) -> Path:
    """Qwen2-VL's shape: the first layers of SmolLM2, and a small untrained encoder of images in front of them.

    On text alone it computes what SmolLM2's layers do, so that its answers tell what was moved wrongly.
    """
    import torch
    from safetensors.torch import load_file
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    source = shallow_model_folder()
    text = json.loads((source / "config.json").read_text())
    first = text["vocab_size"]
    taken = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    marks: dict[str, Any] = dict(zip(_MARK_FIELDS, range(first, first + len(MARKS)), strict=True))
    config = Qwen2VLConfig(
        text_config={name: text[name] for name in (*taken, "rms_norm_eps", "max_position_embeddings")}
        | {
            "vocab_size": first + len(MARKS),
            "tie_word_embeddings": True,
            "bos_token_id": text["bos_token_id"],
            "eos_token_id": text["eos_token_id"],
            "rope_parameters": {"rope_type": "default", "rope_theta": _theta(text), "mrope_section": [8, 12, 12]},
        },
        # ``in_chans``: as in Qwen2-VL's own checkpoints, where SGLang looks for it.
        vision_config={"depth": 1, "embed_dim": 32, "num_heads": 2, "mlp_ratio": 2, "in_chans": 3}
        | {"hidden_size": text["hidden_size"]},
        tie_word_embeddings=True,
        **marks,
    )
    torch.manual_seed(11)
    model: Any = Qwen2VLForConditionalGeneration(config)
    model.to(torch.float32)
    trained = load_file(source / "model.safetensors")
    language, kept = model.model.language_model.state_dict(), {}
    for name, tensor in language.items():
        learned = trained.get(f"model.{name}")
        if learned is None:
            assert name.endswith(".bias"), name  # Llama's layers have none.
            kept[name] = torch.zeros_like(tensor)
        else:
            kept[name] = torch.cat([learned, tensor[first:]]) if name == "embed_tokens.weight" else learned
    model.model.language_model.load_state_dict(kept)
    model.save_pretrained(folder)
    for file in source.glob("*token*"):
        shutil.copy(file, folder)
    _write_marks(folder)
    return folder


def _theta(text: dict[str, object]) -> float:
    parameters = text.get("rope_parameters")
    return float(parameters["rope_theta"] if isinstance(parameters, dict) else str(text["rope_theta"]))


def _write_marks(folder: Path) -> None:
    """The tokens that stand for images, and how images are cut."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_processor_type": "Qwen2VLImageProcessor",
                "processor_class": "Qwen2VLProcessor",
                "min_pixels": 56 * 56,
                "max_pixels": 112 * 112,
                "patch_size": 14,
                "temporal_patch_size": 2,
                "merge_size": 2,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
            }
        )
    )


def read_images_without_torchvision() -> None:
    """Its builds want a GPU: there is a stand-in for it, and what cuts images does without. No video is shown."""
    from transformers import AutoTokenizer, Qwen2VLProcessor, Qwen2VLVideoProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    kind: Any = Qwen2VLProcessor

    def processor(path: str, **_: Any) -> Any:
        images, tokenizer = Qwen2VLImageProcessorPil.from_pretrained(path), AutoTokenizer.from_pretrained(path)
        return kind(images, tokenizer, Qwen2VLVideoProcessor())

    kind.from_pretrained = processor


def some_image() -> Any:
    """Always the same, of noise."""
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.default_rng(5).integers(0, 255, (56, 84, 3), dtype=np.uint8))
