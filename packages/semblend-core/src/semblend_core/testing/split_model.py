"""A trained model that two tensor-parallel ranks can share."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from semblend_core.testing.shallow_model import shallow_model_folder

if TYPE_CHECKING:
    from torch import Tensor

KV_HEADS = 4
_SPLIT = ("q_proj", "k_proj", "v_proj", "o_proj")


def write_split_model(folder: Path) -> Path:
    """The first layers of SmolLM2 with four KV heads instead of three, which no two ranks can share.

    The third head and its queries stand there twice, and each of the two adds half of what it added before. So it
    computes what SmolLM2 does, and each rank has heads that matter.
    """
    from safetensors.torch import load_file, save_file

    source = shallow_model_folder()
    config = json.loads((source / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    assert (heads, kv_heads) == (9, 3)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    changed = {"num_attention_heads": 12, "num_key_value_heads": KV_HEADS, "head_dim": config["hidden_size"] // heads}
    (folder / "config.json").write_text(json.dumps(config | changed))
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        module = next((each for each in _SPLIT if f".{each}." in name), None)
        if module is not None:
            tensors[name] = _with_a_fourth(tensor, module).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _with_a_fourth(weight: Tensor, module: str) -> Tensor:
    import torch

    along = 1 if module == "o_proj" else 0
    first, last = weight.tensor_split([weight.shape[along] * 2 // 3], along)
    last = last / 2 if module == "o_proj" else last
    return torch.cat([first, last, last], along)
