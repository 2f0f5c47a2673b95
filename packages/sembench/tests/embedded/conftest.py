"""A real decoder small enough for tests: random weights, bytes as tokens, run by the real reference engine."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sembench.schema import DonorPrompt, ManifestItem

WORDS = ("amber", "basalt", "cedar", "delta", "ember", "fjord", "garnet", "harbor", "indigo", "juniper", "kelp")


def passage(seed: object, words: int) -> str:
    source = random.Random(f"passage {seed}")
    return " ".join(f"{source.choice(WORDS)}{source.randrange(100)}" for _ in range(words))


def identifier(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def item(
    transform: str,
    donors: Sequence[str],
    recipient: str,
    *,
    answers: Sequence[str] = (),
    control: bool = False,
) -> ManifestItem:
    return ManifestItem(
        item_id=identifier(transform, recipient),
        dataset="test",
        source_id="1",
        transform=transform,
        donor_prompts=tuple(
            DonorPrompt(donor_id=identifier(transform, number, text), text=text, label=f"donor {number}")
            for number, text in enumerate(donors)
        ),
        recipient_prompt=recipient,
        input="?",
        answers=tuple(answers),
        negative_control=control,
    )


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """The model is too small to share out; processes that are started here inherit it."""
    import torch

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: four Llama layers and a tokenizer with one token per byte."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model") / "tiny"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    template = "{% for message in messages %}user: {{ message['content'] }}\nassistant:{% endfor %}"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", chat_template=template).save_pretrained(
        folder
    )
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16_384,
        eos_token_id=256,
        bos_token_id=None,
        pad_token_id=None,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def items() -> list[ManifestItem]:
    """Every outcome: exact prefix, one document, several places, a declined control, and a prompt that is too long."""
    document, others = passage("document", 90), [passage(number, 45) for number in range(3)]
    first = f"Read this. {document} What is said?"
    return [
        item("exact_repeat", [first], first, answers=["nothing"]),
        item("instruction_variant", [first], f"You are a patient reader of notes. {document} What is said?"),
        item(
            "multi_donor_composite",
            [f"Take this. {text} What is said?" for text in others],
            "Several notes. " + " Next note: ".join(reversed(others)) + " What is said?",
            answers=["amber basalt"],
        ),
        item("negative_control", [first], f"Other matter. {passage('unrelated', 90)} Who came?", control=True),
        item("fuzzy_edit", [first], f"Too long. {passage('long', 2200)}"),
    ]


@pytest.fixture
def manifest(tmp_path: Path, items: list[ManifestItem]) -> Path:
    return write_manifest(tmp_path / "manifest.jsonl", items)


def write_manifest(path: Path, items: Sequence[ManifestItem]) -> Path:
    path.write_text("".join(item.model_dump_json() + "\n" for item in items))
    return path


@pytest.fixture(scope="session")
def write() -> Callable[[Path, Sequence[ManifestItem]], Path]:
    return write_manifest
