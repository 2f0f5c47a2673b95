"""Where models come from, and what is said when they do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `reference`")
pytest.importorskip("transformers", reason="needs the extra `reference`")

import torch
import transformers

from semblend_core.reference import ModelNotLoadedError, ReferenceEngine, default_model_folder, load_default_tokenizer
from semblend_core.reference.__main__ import main
from semblend_core.reference.loading import load_model, write_default_model
from semblend_core.reference.smollm2 import default_model_file
from semblend_core.testing import shallow_model_folder

if TYPE_CHECKING:
    from semblend_core.reference import ReferenceEngine as Engine


def test_the_default_model_is_kept_as_a_folder_that_transformers_reads() -> None:
    folder = default_model_folder()
    assert (folder / "model.safetensors").stat().st_size > 500_000_000
    assert default_model_folder() == folder
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "In 2026, naïve tokens:\n  <|im_end|>"
    assert tokenizer.encode(text) == load_default_tokenizer().encode(text).ids
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_the_folder_holds_the_weights_of_the_file(engine: Engine) -> None:
    gguf = pytest.importorskip("gguf", reason="needs the extra `reference`")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(default_model_file()).tensors}
    weights = engine.model.state_dict()
    for theirs, ours in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.7.attn_v.weight", "model.layers.7.self_attn.v_proj.weight"),
        ("blk.29.ffn_down.weight", "model.layers.29.mlp.down_proj.weight"),
    ):
        expected = gguf.quants.dequantize(stored[theirs].data, stored[theirs].tensor_type)
        assert np.array_equal(weights[ours].numpy(), expected), ours


def test_the_folder_needs_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "gguf.py").write_text("raise ModuleNotFoundError(\"No module named 'gguf'\", name='gguf')")
    folder = default_model_folder()
    program = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from semblend_core.reference import ReferenceEngine
engine = ReferenceEngine.load({str(folder)!r})
print(engine.geometry.layers, "gguf" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["30", "False"], done.stderr


def test_a_short_type_is_loaded_when_asked_for() -> None:
    # Few layers and tokens: some CPUs compute a short type number by number.
    engine = ReferenceEngine.load(shallow_model_folder(), dtype="bfloat16")
    assert engine.geometry.dtype is torch.bfloat16
    prefill = engine.prefill(np.arange(100, 108))
    assert prefill.logits.dtype is torch.float32
    assert engine.decode(prefill, 2, stop_ids=()) == engine.decode(prefill, 2, stop_ids=())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "/no/such/folder"}, "no model folder or GGUF file at /no/such/folder"),
        ({"model": "./missing"}, "no model folder or GGUF file at missing"),
        ({"model": "nobody/no-such-model"}, "'nobody/no-such-model' is no local folder.*model=None takes SmolLM2"),
        ({"dtype": "float17"}, "dtype='float17'"),
        ({"device": "nowhere"}, "did not load on nowhere"),
    ],
)
def test_what_cannot_be_loaded_is_an_error_that_says_what_to_do(
    arguments: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotLoadedError, match=message):
        load_model(**arguments)


def test_a_file_or_folder_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a model")
    with pytest.raises(ModelNotLoadedError, match=r"notes\.txt is a file but no \.gguf"):
        load_model(tmp_path / "notes.txt")
    with pytest.raises(ModelNotLoadedError, match=r"no config\.json"):
        load_model(tmp_path)
    with pytest.raises(ModelNotLoadedError, match="exists: remove it"):
        write_default_model(tmp_path)


def test_the_command_says_where_the_model_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.strip() == str(default_model_folder())
    assert main([str(tmp_path)]) == 1
    assert f"{tmp_path} exists: remove it" in capsys.readouterr().err


def test_the_tokenizer_is_importable_without_torch(tmp_path: Path) -> None:
    for absent in ("torch", "transformers"):
        (tmp_path / f"{absent}.py").write_text(f"raise ModuleNotFoundError('blocked', name={absent!r})")
    program = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import semblend_core.reference as reference
reference.load_default_tokenizer
try:
    reference.ReferenceEngine
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "pip install 'semblend-core[reference]'" in done.stdout, done.stderr


def test_every_exported_name_is_there() -> None:
    import semblend_core.reference as reference

    assert [name for name in reference.__all__ if getattr(reference, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = reference.nothing
