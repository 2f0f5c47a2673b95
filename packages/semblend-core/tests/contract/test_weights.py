"""Two checkpoints are never taken for one, and a copy is never taken for another."""

from __future__ import annotations

import json
import logging
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semblend_core import identity_of_weights
from semblend_core.contract import weights

LAYERS = 3
MiB = 1024**2
Tensors = dict[str, np.ndarray]


def tensors_of_a_model() -> Tensors:
    dice = np.random.default_rng(1)

    def some(*shape: int) -> np.ndarray:
        return dice.standard_normal(shape, np.float32).astype(np.float16)

    tensors = {"model.embed_tokens.weight": some(4000, 256), "model.norm.weight": some(256)}
    for layer in range(LAYERS):
        tensors[f"model.layers.{layer}.self_attn.q_proj.weight"] = some(256, 256)
        tensors[f"model.layers.{layer}.self_attn.q_proj.bias"] = some(256)
        tensors[f"model.layers.{layer}.mlp.down_proj.weight"] = some(2560, 256)
    return tensors


def write_safetensors(path: Path, tensors: Tensors) -> None:
    entries, offset = {}, 0
    for name, tensor in tensors.items():
        entries[name] = {"dtype": "F16", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    header = json.dumps(entries).encode()
    content = b"".join(tensor.tobytes() for tensor in tensors.values())
    path.write_bytes(len(header).to_bytes(8, "little") + header + content)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as too large to be read as a whole."""
    monkeypatch.setattr(weights, "SMALL_FILE", 0)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", tensors_of_a_model())
    (folder / "config.json").write_text("{}")
    return folder


def set_times(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, ns=(10**9, 10**9))


# --- What changes nothing ------------------------------------------------------------------------------------------


def test_what_stays_as_it_is_keeps_its_identity(checkpoint: Path) -> None:
    before = identity_of_weights(checkpoint)
    (checkpoint / "README.md").write_text("says nothing of the weights")
    (checkpoint / "generation_config.json").write_text('{"temperature": 1}')
    assert identity_of_weights(str(checkpoint)) == identity_of_weights(checkpoint, "commit") == before


def test_a_copy_at_another_place_and_time_is_the_same(checkpoint: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkpoint, tmp_path / "elsewhere" / "copy")
    set_times(copy)
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in checkpoint.iterdir():  # As a hub's cache does.
        (linked / path.name).symlink_to(path)
    assert identity_of_weights(copy) == identity_of_weights(linked) == identity_of_weights(checkpoint)


def test_files_that_nobody_writes_to_are_read_once_in_a_process(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SETTLED_AFTER_S", -1.0)
    before = identity_of_weights(checkpoint)
    with monkeypatch.context() as unreadable:
        unreadable.delattr(os, "pread")
        assert identity_of_weights(checkpoint) == before
    (checkpoint / "config.json").write_text("{} ")
    assert identity_of_weights(checkpoint) != before


# --- What training changes -----------------------------------------------------------------------------------------


def change(tensor: np.ndarray, share: float) -> None:
    """By one bit each, as the last steps of a training do."""
    flat = tensor.reshape(-1).view(np.uint16)
    flat[np.random.default_rng(2).random(flat.size) < share] ^= 1


def fine_tune(tensors: Tensors) -> None:
    for tensor in tensors.values():
        change(tensor, 0.001)


def merge_an_adapter(tensors: Tensors) -> None:
    for name in tensors:
        if "q_proj.weight" in name:
            low_rank = np.outer(np.linspace(-1, 1, 256), np.linspace(-1, 1, 256)) * 1e-3
            tensors[name] = (tensors[name] + low_rank).astype(np.float16)


def edit_one_layer(tensors: Tensors) -> None:
    change(tensors["model.layers.1.mlp.down_proj.weight"], 0.01)


def tune_biases(tensors: Tensors) -> None:
    tensors["model.layers.2.self_attn.q_proj.bias"][100] += 1


def train_the_row_of_one_token(tensors: Tensors) -> None:
    tensors["model.embed_tokens.weight"][3123] *= 2


def rename_a_tensor(tensors: Tensors) -> None:
    tensors["model.final_norm.weight"] = tensors.pop("model.norm.weight")


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    "train",
    [fine_tune, merge_an_adapter, edit_one_layer, tune_biases, train_the_row_of_one_token, rename_a_tensor],
)
def test_other_weights_with_equal_names_sizes_and_times_are_others(
    checkpoint: Path, train: Callable[[Tensors], None]
) -> None:
    set_times(checkpoint)
    before, tensors = identity_of_weights(checkpoint), tensors_of_a_model()
    train(tensors)
    write_safetensors(checkpoint / "model.safetensors", tensors)
    set_times(checkpoint)
    assert identity_of_weights(checkpoint) != before


@pytest.mark.parametrize("change", ["another config", "a tokenizer", "code", "another part", "a part in a folder"])
def test_what_lies_beside_the_weights_counts(checkpoint: Path, change: str) -> None:
    before = identity_of_weights(checkpoint)
    name, content = {
        "another config": ("config.json", '{"rope_theta": 1}'),
        "a tokenizer": ("tokenizer.model", "words"),
        "code": ("modeling_own.py", "scale = 2"),
        "another part": ("more.pt", ""),
        "a part in a folder": ("shards/0.bin", ""),
    }[change]
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).write_text(content)
    assert identity_of_weights(checkpoint) != before


# --- Files that do not say where their tensors lie -----------------------------------------------------------------


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", ["model.bin", "model.gguf", "model.pth"])
def test_a_file_without_a_header_is_told_by_pieces_all_over_it(tmp_path: Path, name: str) -> None:
    content = np.random.default_rng(3).integers(0, 256, 24 * MiB, np.uint8)
    (tmp_path / name).write_bytes(content.tobytes())
    before = identity_of_weights(tmp_path / name)
    content[10 * MiB : 11 * MiB] ^= 1
    (tmp_path / name).write_bytes(content.tobytes())
    assert identity_of_weights(tmp_path / name) != before


@pytest.mark.usefixtures("large")
def test_of_what_pytorch_saves_the_smallest_tensor_counts(tmp_path: Path) -> None:
    def save(bias: bytes) -> str:
        with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
            archive.writestr("model/data/0", bytes(4 * MiB))
            archive.writestr("model/data/1", bias)
            archive.writestr("model/data/2", bytes(4 * MiB))
        return identity_of_weights(tmp_path)

    assert save(b"one bias") != save(b"two bias")


def test_a_single_file_is_told_by_itself_under_any_name(checkpoint: Path) -> None:
    file = checkpoint / "model.gguf"
    file.write_bytes(b"weights")
    before = identity_of_weights(file)
    (checkpoint / "config.json").write_text("changed")
    assert identity_of_weights(file) == before
    assert identity_of_weights(file.rename(checkpoint / "renamed.gguf")) == before


def test_of_a_small_file_every_byte_counts(tmp_path: Path) -> None:
    words = set()
    for last in (b"0", b"1"):
        (tmp_path / "adapter_model.bin").write_bytes(bytes(200_000) + last)
        words.add(identity_of_weights(tmp_path))
    assert len(words) == 2


@pytest.mark.usefixtures("large")
@given(content=st.binary(max_size=400), length=st.integers(0, 2**64 - 1) | st.integers(0, 400))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_header_that_says_anything_at_all_costs_nothing(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, length: int
) -> None:
    file = tmp_path_factory.mktemp("odd") / "model.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + content)
    assert identity_of_weights(file) == identity_of_weights(file)


HEADERS = [
    b"[]",
    b"null",
    b'{"w": 1}',
    b'{"w": {"data_offsets": [0, 9e99]}}',
    b'{"w": {"data_offsets": [4, 2]}}',
    b'{"w": {"data_offsets": [0, 1, 2]}}',
    b'{"embed": {"data_offsets": [0, 0], "shape": ["many", 1]}}',
    b'{"embed": {"data_offsets": [0, 0], "shape": [0, 0]}}',
    b"[" * 100_000,
]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("header", HEADERS, ids=lambda header: repr(header[:40]))
def test_a_header_that_is_json_of_something_else_costs_nothing(tmp_path: Path, header: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    assert identity_of_weights(file) == identity_of_weights(file)


# --- What nothing tells --------------------------------------------------------------------------------------------


def test_a_name_at_a_hub_is_told_by_the_revision_it_stood_for() -> None:
    assert identity_of_weights("somebody/some-model", "1a2b") == "1a2b"


def test_what_nothing_tells_is_never_the_same_twice_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text("{}")
    for place in ("somebody/some-model", tmp_path):
        with caplog.at_level(logging.INFO):
            assert identity_of_weights(place) != identity_of_weights(place)
        assert f"no files of weights are at {place}" in caplog.text


@pytest.mark.parametrize("load_format", ["dummy", "runai_streamer", "tensorizer", "somebody's own"])
def test_weights_that_come_from_elsewhere_are_not_told_by_files(
    checkpoint: Path, load_format: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        words = {identity_of_weights(checkpoint, "commit", load_format) for _ in range(2)}
    assert len(words - {"commit"}) == 2
    assert f"load_format={load_format}" in caplog.text


def test_files_that_cannot_be_read_tell_nothing(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError("not for you")

    monkeypatch.setattr(os, "pread", refuse)
    assert identity_of_weights(checkpoint, "commit") != identity_of_weights(checkpoint, "commit")
