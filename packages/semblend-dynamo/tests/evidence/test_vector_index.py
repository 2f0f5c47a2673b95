"""The vector index: right, isolated by namespace, forgetful, and the same through the graph."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core import Namespace
from semblend_dynamo.evidence import VectorIndex, Vectors
from semblend_dynamo.evidence.embedder import unit_rows

needs_usearch = pytest.mark.skipif(find_spec("usearch") is None, reason="pip install 'semblend-dynamo[ann]'")
DIMENSION = 32


def random_rows(rng: np.random.Generator, rows: int, dimension: int = DIMENSION) -> Vectors:
    return unit_rows(rng.standard_normal((rows, dimension)))


def near(rng: np.random.Generator, rows: Vectors, noise: float) -> Vectors:
    return unit_rows(rows + noise * rng.standard_normal(rows.shape) / np.sqrt(rows.shape[1]))


def slow_similarity(query: Vectors, donor: Vectors) -> float:
    return float(np.mean([max(float(q @ d) for d in donor) for q in query]))


def test_similarity_is_the_mean_of_the_best_windows(namespace: Namespace) -> None:
    rng = np.random.default_rng(0)
    index = VectorIndex(DIMENSION)
    donors = {f"d{i}": random_rows(rng, int(rng.integers(1, 6))) for i in range(40)}
    for donor_id, vectors in donors.items():
        index.add(namespace, donor_id, vectors)
    query = random_rows(rng, 70)  # more than one chunk of query windows
    expected = sorted(((slow_similarity(query, v), d) for d, v in donors.items()), reverse=True)
    found = index.search(namespace, query, 40)
    assert [match.donor_id for match in found] == [donor_id for _, donor_id in expected]
    assert [match.similarity for match in found] == pytest.approx([s for s, _ in expected], abs=1e-5)


def test_one_shared_window_does_not_make_a_donor_perfect(namespace: Namespace) -> None:
    axes = np.eye(DIMENSION, dtype=np.float32)
    index = VectorIndex(DIMENSION)
    index.add(namespace, "only the system prompt", axes[[0, 9]])
    index.add(namespace, "prompt and document", axes[[3, 2, 1, 0]])
    found = index.search(namespace, axes[[0, 1, 2, 3]], 2)
    assert [(match.donor_id, match.similarity) for match in found] == [
        ("prompt and document", 1.0),
        ("only the system prompt", 0.25),
    ]


def test_namespaces_never_see_each_other(make_namespace: Callable[[str | None], Namespace]) -> None:
    index, vectors = VectorIndex(DIMENSION), random_rows(np.random.default_rng(1), 2)
    mine, theirs = make_namespace("mine"), make_namespace("theirs")
    index.add(mine, "d", vectors)
    assert index.search(theirs, vectors, 5) == []
    assert not index.remove(theirs, "d")
    assert index.search(mine, vectors, 5)[0].donor_id == "d"


def test_a_second_add_replaces_the_first(namespace: Namespace) -> None:
    axes = np.eye(DIMENSION, dtype=np.float32)
    index = VectorIndex(DIMENSION)
    index.add(namespace, "d", axes[:3])
    index.add(namespace, "d", axes[5:6])
    assert len(index) == 1
    assert index.search(namespace, axes[:1], 1)[0].similarity == 0.0
    assert index.search(namespace, axes[5:6], 1)[0].similarity == 1.0
    index.check_integrity()


def test_an_empty_query_and_an_empty_namespace_find_nothing(namespace: Namespace) -> None:
    index = VectorIndex(DIMENSION)
    assert index.search(namespace, np.eye(DIMENSION, dtype=np.float32)[:1], 3) == []
    index.add(namespace, "d", np.eye(DIMENSION, dtype=np.float32)[:1])
    assert index.search(namespace, np.empty((0, DIMENSION), dtype=np.float32), 3) == []


@pytest.mark.parametrize(
    ("vectors", "complaint"),
    [
        (np.ones((1, DIMENSION), dtype=np.float32), "length one"),
        (np.full((1, DIMENSION), np.nan, dtype=np.float32), "length one"),
        (np.eye(DIMENSION + 1, dtype=np.float32), "float32"),
        (np.eye(DIMENSION), "float32"),
        (np.empty((0, DIMENSION), dtype=np.float32), "no vectors"),
    ],
)
def test_bad_vectors_are_refused(namespace: Namespace, vectors: np.ndarray, complaint: str) -> None:
    index = VectorIndex(DIMENSION)
    with pytest.raises(ValueError, match=complaint):
        index.add(namespace, "d", vectors)
    index.check_integrity()


actions = st.lists(st.tuples(st.sampled_from("aar"), st.integers(0, 14), st.integers(1, 4)), max_size=80)


@pytest.mark.parametrize("threshold", [1000, pytest.param(4, marks=needs_usearch)])
@given(steps=actions)
@settings(max_examples=40, deadline=None)
def test_any_history_leaves_exactly_the_living_donors(threshold: int, steps: list[tuple[str, int, int]]) -> None:
    space = Namespace(
        model="m",
        revision="r",
        tokenizer="t",
        dtype="d",
        kv_layout="l",
        block_size=1,
        adapter=None,
        salt=None,
    )
    rng = np.random.default_rng(len(steps))
    index, alive = VectorIndex(DIMENSION, ann_threshold=threshold), {}
    for action, number, rows in steps:
        donor_id = f"d{number}"
        if action == "a":
            alive[donor_id] = random_rows(rng, rows)
            index.add(space, donor_id, alive[donor_id])
        else:
            assert index.remove(space, donor_id) == (alive.pop(donor_id, None) is not None)
        index.check_integrity()
        assert len(index) == len(alive)
    for donor_id, vectors in alive.items():
        assert index.search(space, vectors, 1)[0].donor_id == donor_id
    found = {match.donor_id for match in index.search(space, random_rows(rng, 3), 15)}
    assert found == set(alive)


def test_removing_everything_gives_the_bytes_back(namespace: Namespace) -> None:
    rng = np.random.default_rng(2)
    index = VectorIndex(DIMENSION)
    for i in range(300):
        index.add(namespace, f"d{i}", random_rows(rng, 3))
    full = index.nbytes
    assert full >= 300 * 3 * DIMENSION * 4
    for i in range(270):
        assert index.remove(namespace, f"d{i}")
    assert index.nbytes <= full / 4
    for i in range(270, 300):
        assert index.remove(namespace, f"d{i}")
    assert index.nbytes == 0
    index.check_integrity()


@pytest.fixture(scope="module")
def many_donors() -> list[Vectors]:
    """6,000 donors in 600 topics, so that every donor has near rivals."""
    rng = np.random.default_rng(5)
    topics = random_rows(rng, 600, 64)
    return [near(rng, topics[[i % 600, (7 * i) % 600]], 0.6) for i in range(6000)]


@needs_usearch
def test_the_graph_finds_what_exact_search_finds(namespace: Namespace, many_donors: list[Vectors]) -> None:
    exact, graph = VectorIndex(64, ann_threshold=10_000), VectorIndex(64, ann_threshold=1000)
    for number, vectors in enumerate(many_donors):
        for index in (exact, graph):
            index.add(namespace, f"d{number}", vectors)
    assert graph.is_approximate(namespace)
    assert not exact.is_approximate(namespace)
    assert graph.nbytes > exact.nbytes
    rng = np.random.default_rng(6)
    shared = top = 0
    queries = [near(rng, many_donors[int(i)], 0.3) for i in rng.integers(0, 6000, 100)]
    for query in queries:
        want, got = exact.search(namespace, query, 10), graph.search(namespace, query, 10)
        similarities = {match.donor_id: match.similarity for match in want}
        shared += len(similarities.keys() & {match.donor_id for match in got})
        top += want[0].donor_id == got[0].donor_id
        for match in got:  # a proposal is approximate, its score is not
            if match.donor_id in similarities:
                assert match.similarity == pytest.approx(similarities[match.donor_id], abs=1e-5)
    assert shared >= 0.95 * 10 * len(queries)
    assert top >= 0.99 * len(queries)
    graph.check_integrity()
    _removed_donors_stay_away(graph, namespace, many_donors)


def _removed_donors_stay_away(index: VectorIndex, namespace: Namespace, donors: list[Vectors]) -> None:
    for number in range(0, 6000, 3):
        assert index.remove(namespace, f"d{number}")
    index.check_integrity()
    for number in range(0, 600, 3):
        found = {match.donor_id for match in index.search(namespace, donors[number], 10)}
        assert all(int(donor_id[1:]) % 3 for donor_id in found)
        assert len(found) == 10


@needs_usearch
def test_few_donors_are_searched_exactly_again_and_churn_renews_the_graph(namespace: Namespace) -> None:
    rng = np.random.default_rng(8)
    index = VectorIndex(DIMENSION, ann_threshold=50)
    for number in range(400):  # a window of 100 living donors moves on
        index.add(namespace, f"d{number}", random_rows(rng, 2))
        if number >= 100:
            assert index.remove(namespace, f"d{number - 100}")
        index.check_integrity()
    assert len(index) == 100
    busy = index.nbytes
    for number in range(300, 380):
        assert index.remove(namespace, f"d{number}")
    assert not index.is_approximate(namespace)
    assert index.nbytes < busy
    index.check_integrity()


def test_without_usearch_the_search_stays_exact_and_says_so_once(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "usearch", None)  # makes its import fail, as where it is not installed
    rng = np.random.default_rng(9)
    index = VectorIndex(DIMENSION, ann_threshold=5)
    donors = [random_rows(rng, 2) for _ in range(20)]
    for number, vectors in enumerate(donors):
        index.add(namespace, f"d{number}", vectors)
    assert not index.is_approximate(namespace)
    assert index.search(namespace, donors[19], 1)[0].donor_id == "d19"
    (record,) = caplog.records
    assert "SEMBLEND_ANN_THRESHOLD=5" in record.getMessage()
    assert "semblend-dynamo[ann]" in record.getMessage()
    index.check_integrity()


def test_threads_may_add_remove_and_search_at_once(namespace: Namespace) -> None:
    index = VectorIndex(DIMENSION, ann_threshold=20 if find_spec("usearch") else 1000)
    failures: list[BaseException] = []

    def work(name: str) -> None:
        rng = np.random.default_rng(ord(name))
        try:
            for number in range(120):
                vectors = random_rows(rng, 2)
                index.add(namespace, f"{name}{number}", vectors)
                index.search(namespace, vectors, 3)
                if number % 2:
                    assert index.remove(namespace, f"{name}{number}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(index) == 4 * 60
    index.check_integrity()
