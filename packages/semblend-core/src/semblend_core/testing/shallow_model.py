"""A model for tests in which a trained model's attention matters and its answers do not."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_WEIGHTS = "model.safetensors"


def shallow_model_folder(layers: int = 5) -> Path:
    """The first layers of SmolLM2-135M-Instruct as a Hugging Face folder in the model cache, made the first time.

    A prompt costs a fifth of what it costs in the whole model, and attention still looks at words and their places as
    a trained model's does: random weights would look everywhere alike and forgive what is moved wrongly.
    """
    from semblend_core.reference import default_model_folder

    whole = Path(default_model_folder())
    folder = whole.with_name(f"{whole.name}-{layers}-layers")
    if not (folder / "config.json").is_file():
        # Whole or not at all, also when two processes write at once.
        partial = Path(tempfile.mkdtemp(dir=whole.parent, prefix=f"{folder.name}.partial-"))
        _write(whole, partial, layers)
        try:
            os.replace(partial, folder)
        except OSError:
            shutil.rmtree(partial)
    return folder


def _write(whole: Path, folder: Path, layers: int) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    for file in whole.iterdir():
        if file.name not in ("config.json", _WEIGHTS):
            shutil.copy(file, folder)
    with safe_open(whole / _WEIGHTS, framework="pt") as stored:
        kept = {name: stored.get_tensor(name) for name in stored.keys() if _layer_of(name) < layers}  # noqa: SIM118
    save_file(kept, folder / _WEIGHTS, metadata={"format": "pt"})
    config = json.loads((whole / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}, indent=2))


def _layer_of(name: str) -> int:
    """-1 for what belongs to no layer."""
    found = _LAYER.search(name)
    return int(found.group(1)) if found else -1
