"""Whose KV may be used by whom, when donors outlive the process that computed them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from semblend_core.serving import Namespaces
from semblend_sglang.factory import shared_fields


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("model", "adapter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights.safetensors").write_bytes(b"weights")
    return tmp_path


class RadixAttention(torch.nn.Module):
    """Known by its name, as SGLang's is."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.layer_id, self.k_scale, self.v_scale = 0, scale, 1.0


def digest(
    folder: Path,
    *,
    commit: str | None = None,
    page_size: int = 1,
    ranks: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    scale: float = 1.0,
    **changed: Any,
) -> str:
    """Of the unsalted tenant's namespace, as a process that starts now makes it."""
    arguments = {
        "model_path": str(folder / "model"),
        "revision": None,
        "tokenizer_path": None,
        "quantization": None,
        "load_format": "auto",
        "enable_lora": True,
        "lora_paths": [SimpleNamespace(lora_id="made of name and path", lora_path=str(folder / "adapter"))],
        "_declarations_materialized": True,
        **changed,
    }
    buffers = SimpleNamespace(dtype=dtype, k_buffer=[None])
    layer = RadixAttention(scale)
    runner = SimpleNamespace(prefill_attention_backend_str="triton", model=torch.nn.ModuleList([layer]))
    pool = SimpleNamespace(get_kvcache=lambda: buffers)
    context = SimpleNamespace(
        server_args=SimpleNamespace(**arguments),
        params=SimpleNamespace(token_to_kv_pool_allocator=pool, page_size=page_size),
        model_config=SimpleNamespace(hf_config=SimpleNamespace(_commit_hash=commit)),
        tp_size=ranks,
        tp_worker=SimpleNamespace(model_runner=runner),
    )
    return Namespaces(**shared_fields(context)).of(None, None).digest


def test_the_same_start_has_the_same_donors(folders: Path) -> None:
    assert digest(folders) == digest(folders)


def test_kv_under_other_scales_is_other_kv(folders: Path) -> None:
    fp8 = torch.float8_e4m3fn
    assert digest(folders, dtype=fp8, scale=0.5) == digest(folders, dtype=fp8, scale=0.5)
    each = {digest(folders, dtype=fp8, scale=scale) for scale in (0.5, 0.25, 1.0)}
    assert len(each | {digest(folders, dtype=torch.float8_e5m2), digest(folders)}) == 5


def test_another_number_of_ranks_has_others(folders: Path) -> None:
    assert digest(folders, ranks=2) != digest(folders)


@pytest.mark.parametrize("replaced", ["model", "adapter"])
def test_another_checkpoint_in_the_same_place_has_others(folders: Path, replaced: str) -> None:
    before, weights = digest(folders), folders / replaced / "weights.safetensors"
    os.utime(weights, ns=(1, 1))
    assert digest(folders) == before
    weights.write_bytes(b"Weights")
    os.utime(weights, ns=(1, 1))
    assert digest(folders) != before


@pytest.mark.parametrize(
    "changed",
    [
        {"quantization": "fp8"},
        {"load_format": "dummy"},
        {"json_model_override_args": '{"rope_theta": 1}'},
        {"page_size": 16},
        {"enable_lora": False},
    ],
    ids=str,
)
def test_other_use_of_the_same_weights_has_others(folders: Path, changed: dict[str, Any]) -> None:
    assert digest(folders, **changed) != digest(folders)


def test_random_weights_are_no_other_processs(folders: Path) -> None:
    assert digest(folders, load_format="dummy") != digest(folders, load_format="dummy")


def test_a_name_at_a_hub_is_told_by_its_commit_and_else_by_nothing(folders: Path) -> None:
    named = {"model_path": "somebody/some-model", "enable_lora": False}
    assert digest(folders, commit="a", **named) == digest(folders, commit="a", **named)
    assert digest(folders, commit="a", **named) != digest(folders, commit="b", **named)
    assert digest(folders, **named) != digest(folders, **named)


def test_adapters_that_are_ignored_may_be_in_any_form(folders: Path) -> None:
    assert digest(folders, enable_lora=False, lora_paths=["name=path"]) == digest(folders, enable_lora=False)


def test_new_weights_have_a_namespace_that_no_other_process_has() -> None:
    books = [
        Namespaces(model="m", revision="r", tokenizer="t", dtype="d", kv_layout="l", block_size=1) for _ in range(2)
    ]
    start = {book.of(None, None).digest for book in books}
    for book in books:
        book.new_weights()
    assert len(start) == 1
    assert len(start | {book.of(None, None).digest for book in books}) == 3
