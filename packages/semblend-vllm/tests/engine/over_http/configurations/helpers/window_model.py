"""A trained model of which some layers see the last tokens only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from semblend_core.testing import shallow_model_folder

WINDOW = 128


def write_window_model(folder: Path) -> Path:
    """The first layers of SmolLM2, of which every other attends to a window."""
    source = shallow_model_folder()
    config = json.loads((source / "config.json").read_text())
    kinds = [("sliding_attention", "full_attention")[layer % 2] for layer in range(config["num_hidden_layers"])]
    shutil.copytree(source, folder)
    (folder / "config.json").write_text(json.dumps(config | {"layer_types": kinds, "sliding_window": WINDOW}))
    return folder
