"""Donors on disk, and adapters: one server that keeps everything on disk, and one that is started anew behind it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semblend_core.testing import shallow_model_folder

ADAPTERS = ("careful", "hasty")
RANK = 8
LARGEST_KL = 0.05
"""One document behind a new instruction."""
NOT_THERE = [[reason] for reason in ("donor_corrupt", "donor_evicted", "load_failed")]
"""One reason, whether the donor is found out while it is fetched or when it is loaded."""


def text(kind: str) -> str:
    return " ".join(f"{kind} {n} weighs {n * 29 % 83 + 3} pounds, cost {n * 13 % 47 + 2} crowns." for n in range(30))


def donor(kind: str) -> str:
    return f"A list.\n\n{text(kind)}\n\nQuestion: which is the lightest?\nAnswer:"


def recipient(kind: str) -> str:
    return f"System: answer in a few words, from the list below.\n\n{text(kind)}\n\nQuestion: what?\nAnswer:"


def write_adapter(folder: Path, seed: int) -> Path:
    """Random and small, but not too small to change answers."""
    import torch
    from safetensors.torch import save_file

    source = torch.Generator().manual_seed(seed)
    shapes = {"q_proj": 576, "k_proj": 192, "v_proj": 192}
    config = json.loads((shallow_model_folder() / "config.json").read_text())
    layers, tensors = config["num_hidden_layers"], {}
    for layer in range(layers):
        for module, width in shapes.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, 576, generator=source) * 0.1
            tensors[f"{name}.lora_B.weight"] = torch.randn(width, RANK, generator=source) * 0.1
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": list(shapes), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def start(new_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Callable[[], Any], Path]:
    """Servers whose only tier is the same folder, with two adapters."""
    folder = tmp_path_factory.mktemp("disk")
    adapters = [f"{name}={write_adapter(folder / name, seed)}" for seed, name in enumerate(ADAPTERS)]
    settings = {
        "SEMBLEND_STORE_HOST_BYTES": "0",
        "SEMBLEND_STORE_DISK_BYTES": "2GiB",
        "SEMBLEND_STORE_DISK_PATH": str(folder / "donors"),
    }
    lora = ("--enable-lora", "--max-lora-rank", str(RANK), "--max-loras", "2", "--lora-modules", *adapters)
    return lambda: new_server(settings, *lora), folder / "donors" / "donors"


@pytest.fixture(scope="module")
def first(start: tuple[Callable[[], Any], Path]) -> Iterator[Any]:
    with start[0]() as server:
        yield server


@pytest.fixture
def files(start: tuple[Callable[[], Any], Path]) -> Path:
    return start[1]


def cold_answer(server: Any, prompt: str, **more: Any) -> Any:
    return server.reused(prompt, cache_salt="cold", kv_transfer_params={"semblend": "off"}, **more)


def test_a_donor_on_disk_is_reused(first: Any, files: Path, divergence: Any) -> None:
    first.keep(donor("Barrel"))
    assert list(files.glob("*.safetensors"))
    cold = cold_answer(first, recipient("Barrel"))
    reused = first.reused(recipient("Barrel"))
    assert reused.confirmed_tokens > 0.7 * reused.prompt_tokens
    assert divergence(cold, reused) < LARGEST_KL


def test_another_adapter_finds_nothing(first: Any) -> None:
    first.keep(donor("Anchor"), model="careful")
    for model in ("hasty", "smollm2"):
        answer = first.reused(recipient("Anchor"), model=model, kv_transfer_params={"semblend": {"capture": False}})
        assert (answer.cached_tokens, answer.confirmed_tokens) == (0, 0)
        assert answer.declined in (["no_donors"], ["no_spans"])


def test_the_same_adapter_reuses_its_own(first: Any, divergence: Any) -> None:
    cold = {model: cold_answer(first, recipient("Anchor"), model=model) for model in (*ADAPTERS, "smollm2")}
    others = [divergence(cold["careful"], cold[model]) for model in ("hasty", "smollm2")]
    assert min(others) > 10 * LARGEST_KL, "adapters that change nothing prove nothing"
    reused = first.reused(recipient("Anchor"), model="careful")
    assert reused.confirmed_tokens > 0.7 * reused.prompt_tokens
    assert divergence(cold["careful"], reused) < LARGEST_KL


def test_damaged_files_are_a_cold_prefill_and_a_counted_reason(first: Any, files: Path) -> None:
    before = set(files.glob("*.safetensors"))
    first.keep(donor("Candle"))
    (written,) = set(files.glob("*.safetensors")) - before
    content = bytearray(written.read_bytes())
    content[len(content) // 4 : len(content) * 3 // 4] = bytes(len(content) * 3 // 4 - len(content) // 4)
    written.write_bytes(content)
    cold = cold_answer(first, recipient("Candle"))
    answer = first.reused(recipient("Candle"))
    assert answer.confirmed_tokens == 0
    assert answer.declined in NOT_THERE
    assert answer.text == cold.text
    assert first.reused(donor("Barrel")).text, "the engine lives on"


@pytest.fixture(scope="module")
def second(first: Any, start: tuple[Callable[[], Any], Path]) -> Iterator[Any]:
    """After the first has ended."""
    first.stop()
    with start[0]() as server:
        yield server


def test_a_new_process_finds_the_donors_of_the_one_before(second: Any, divergence: Any) -> None:
    # The model must have proved itself on a prompt before anything is loaded.
    second.keep(donor("Drum"))
    cold = cold_answer(second, recipient("Barrel"))
    reused = second.reused(recipient("Barrel"))
    assert reused.confirmed_tokens > 0.7 * reused.prompt_tokens
    assert divergence(cold, reused) < LARGEST_KL
    for model, finds in (("hasty", False), ("careful", True)):
        second.ask("Say yes.", model=model)
        assert bool(second.reused(recipient("Anchor"), model=model).confirmed_tokens) == finds


def test_a_folder_that_is_gone_is_a_cold_prefill_and_a_counted_reason(second: Any, files: Path) -> None:
    cold = cold_answer(second, recipient("Drum"))
    shutil.rmtree(files.parent)
    answer = second.reused(recipient("Drum"))
    assert answer.confirmed_tokens == 0
    assert answer.declined in NOT_THERE
    assert answer.text == cold.text
    assert second.reused(donor("Engine")).text, "the engine lives on"
