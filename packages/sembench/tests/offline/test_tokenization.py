"""Tokenizers: the same text, the same ids, and an answer for every name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.schema import InputError
from sembench.tokenization import BUILT_IN, WordTokenizer, load_tokenizer


@given(st.text())
def test_words_cover_the_whole_text(text: str) -> None:
    tokenizer = WordTokenizer()
    assert "".join(tokenizer._pieces.findall(text)) == text
    ids = tokenizer.encode(text)
    assert all(0 <= number < 2**31 for number in ids)
    assert [batch.tolist() for batch in tokenizer.encode_batch([text, text])] == [ids, ids]


def test_words_have_the_same_ids_in_every_process() -> None:
    text = "Ticket 12345: the user's disk_7 is full.\n\n  Again."
    code = f"from sembench.tokenization import load_tokenizer; print(load_tokenizer(None).encode({text!r}))"
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert elsewhere.stdout.strip() == str(load_tokenizer(BUILT_IN).encode(text))


def test_a_word_is_one_token_wherever_it_stands() -> None:
    tokenizer = load_tokenizer(None)
    assert tokenizer.name == "words-v1"
    one, two = tokenizer.encode("the disk is full"), tokenizer.encode("now the disk is full")
    assert len(one) == 4
    assert two[2:] == one[1:]


@pytest.fixture(scope="module")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0, "disk": 1, "full": 2, "<s>": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    tokenizer.enable_truncation(2)
    path: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_file_and_its_folder_are_one_tokenizer(tokenizer_json: Path) -> None:
    for name in (str(tokenizer_json), str(tokenizer_json.parent)):
        tokenizer = load_tokenizer(name)
        assert tokenizer.name == name
        # Neither its special tokens nor its truncation.
        assert tokenizer.encode("disk full disk spin") == [1, 2, 1, 0]
    assert load_tokenizer(str(tokenizer_json)).digest == load_tokenizer(str(tokenizer_json.parent)).digest


def test_a_batch_is_in_order_and_as_one_by_one(tokenizer_json: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_json))
    texts = ["disk " * (number % 7) + "full" for number in range(200)]
    batch = list(tokenizer.encode_batch(texts))
    assert all(ids.dtype == np.int32 for ids in batch)
    assert [ids.tolist() for ids in batch] == [tokenizer.encode(text) for text in texts]


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for name in ("./nowhere", str(tmp_path / "tokenizer.json"), str(tmp_path)):
        with pytest.raises(InputError, match=r"--tokenizer .*tokenizer.json"):
            load_tokenizer(name)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    for content in ("{}", "not JSON", "[1"):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(InputError, match=r"not a tokenizer.json"):
            load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("name", ["a b", "x/y/z", "-x"])
def test_a_name_that_no_hub_would_take_is_refused(name: str) -> None:
    pytest.importorskip("huggingface_hub")
    with pytest.raises(InputError, match="no file, folder or hub id"):
        load_tokenizer(name)


def test_offline_only_the_cache_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set; --tokenizer takes") as refusal:
        load_tokenizer("nobody/no-such-model")
    assert refusal.value.exit_code == 2


def test_an_unreachable_hub_is_told_with_the_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(InputError, match=r"the hub is not reachable.*'smollm2'.*'words-v1'"):
        load_tokenizer("nobody/no-such-model")


def test_the_local_hub_cache_needs_no_hub(
    tokenizer_json: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    revision = "0" * 40
    folder = tmp_path / "models--some--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(revision)
    (folder / "snapshots" / revision).mkdir(parents=True)
    (folder / "snapshots" / revision / "tokenizer.json").write_bytes(tokenizer_json.read_bytes())
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tokenizer = load_tokenizer("some/model")
    assert tokenizer.name == "some/model"
    assert tokenizer.encode("disk full") == [1, 2]


def test_the_default_models_tokenizer_round_trips_a_prompt() -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("gguf")
    tokenizer = load_tokenizer("smollm2")
    ids = tokenizer.encode("The disk is full.")
    assert tokenizer.name == "smollm2"
    assert len(ids) == 5
    assert max(ids) < 49152
