"""The cosine of two Jaccard vectors estimates the Jaccard index of the documents' shingles."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_dynamo.evidence import Document, Embedder, JaccardEmbedder


def cosine(embedder: JaccardEmbedder, left: np.ndarray, right: np.ndarray) -> float:
    (a,), (b,) = embedder.embed(Document(left)), embedder.embed(Document(right))
    return float(a @ b)


def true_jaccard(left: np.ndarray, right: np.ndarray, size: int) -> float:
    a, b = ({tuple(t[i : i + size]) for i in range(len(t) - size + 1)} for t in (left.tolist(), right.tolist()))
    return len(a & b) / len(a | b)


def test_it_is_an_embedder_of_unit_vectors() -> None:
    embedder = JaccardEmbedder(hashes=64)
    assert isinstance(embedder, Embedder)
    vectors = embedder.embed(Document(np.arange(50, dtype=np.int32)))
    assert vectors.shape == (1, 64)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.abs(vectors), 1 / 8)


@given(shared=st.integers(0, 400), own=st.integers(1, 400), seed=st.integers(0, 2**16), shingle=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_the_estimate_is_within_its_statistical_tolerance(shared: int, own: int, seed: int, shingle: int) -> None:
    rng = np.random.default_rng(seed)
    body = rng.integers(0, 50_000, shared, dtype=np.int32)
    left, right = (np.concatenate([rng.integers(0, 50_000, own + 4, dtype=np.int32), body]) for _ in range(2))
    hashes = 2048
    truth = true_jaccard(left, right, shingle)
    # Six standard deviations: one example in about 10**9 would fail by chance.
    tolerance = 6 * np.sqrt(max(1 - truth**2, 1e-3) / hashes)
    assert abs(cosine(JaccardEmbedder(hashes, shingle), left, right) - truth) < tolerance


def test_the_estimate_is_unbiased() -> None:
    rng = np.random.default_rng(7)
    errors = []
    for _ in range(200):
        body = rng.integers(0, 50_000, 300, dtype=np.int32)
        left, right = (np.concatenate([body, rng.integers(0, 50_000, 150, dtype=np.int32)]) for _ in range(2))
        errors.append(cosine(JaccardEmbedder(), left, right) - true_jaccard(left, right, 3))
    # The mean of 200 estimates at 256 hashes has a standard deviation of 0.004.
    assert abs(float(np.mean(errors))) < 0.02


def test_reordered_passages_stay_alike_and_other_text_does_not() -> None:
    rng = np.random.default_rng(3)
    passages = [rng.integers(0, 50_000, 500, dtype=np.int32) for _ in range(4)]
    embedder = JaccardEmbedder()
    forward, backward = np.concatenate(passages), np.concatenate(passages[::-1])
    assert cosine(embedder, forward, backward) > 0.9
    assert abs(cosine(embedder, forward, rng.integers(0, 50_000, 2000, dtype=np.int32))) < 0.35


@pytest.mark.parametrize("tokens", [[5], [5, 6]])
def test_a_document_shorter_than_a_shingle_still_has_a_vector(tokens: list[int]) -> None:
    embedder = JaccardEmbedder()
    document = np.asarray(tokens, dtype=np.int32)
    assert cosine(embedder, document, document) == pytest.approx(1.0)


def test_an_empty_document_has_no_vector() -> None:
    assert JaccardEmbedder().embed(Document(np.empty(0, dtype=np.int32))).shape == (0, 256)


def test_vectors_are_equal_in_every_process() -> None:
    program = (
        "import numpy as np; from semblend_dynamo.evidence import Document, JaccardEmbedder; "
        "print(JaccardEmbedder().embed(Document(np.arange(99, dtype=np.int32))).tobytes().hex())"
    )
    elsewhere = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    here = JaccardEmbedder().embed(Document(np.arange(99, dtype=np.int32))).tobytes().hex()
    assert elsewhere.strip() == here


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="hashes"):
        JaccardEmbedder(hashes=1)
    with pytest.raises(ValueError, match="shingle"):
        JaccardEmbedder(shingle=0)
