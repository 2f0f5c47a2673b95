"""The public package ``semblend`` 0.3.25 as a peer, measured in the process that measures our own index.

It ships a top-level module ``semblend_core``, as we do, so it is never installed beside ours: it goes into a
cache folder, and its modules take our modules' names only while one of its calls runs. Between the calls of a
``with`` block ``semblend_core`` is ours. Not safe while another thread imports ``semblend_core``.

The peer finds donors by MiniLM similarity and loads the model through sentence-transformers. That name is
answered by a stand-in over our own MiniLM (ONNX Runtime on the CPU): the peer's code still cuts the text and
pools the vectors, and neither torch nor a model hub is needed. Where no MiniLM is installed the stand-in
hashes a bag of word pieces: ``embedder`` says which one ran, and ``embed_ms`` is then None.
"""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from semblend_core import require_extra

# The comparison alone needs it: no module of core does.
_EVIDENCE: Any = require_extra("semblend_dynamo.evidence", distribution="semblend-dynamo", extra="onnx")

PEER_VERSION = "0.3.25"

CLEAN = {"SEMBLEND_EMBEDDER": "minilm", "SEMBLEND_METRICS": "0"}
"""Set in every mode. Metrics off: two copies of the peer would register the same Prometheus names."""

TUNED = {
    "SEMBLEND_EMBED_MAX_CHARS": "200000",
    "SEMBLEND_EXACT_RUN_MAX_SEGMENTS": "1000",
    "SEMBLEND_EXACT_RUN_MIN_TOKENS": "16",
}
"""Embeds the whole prompt (default: its first 4000 characters) and keeps up to 1000 exact runs of at least 16
tokens of the one chosen donor (default: 8 runs of at least 64)."""

_STAND_IN = "sentence_transformers"
_PEER_NAMES = {"semblend_core", "semblend", "semblend_kv_connector", "synapse_kv_connector", _STAND_IN}
_DIMENSION, _WINDOW = 384, 256  # of the peer's model: vector length, and pieces that it reads of one text

Floats = npt.NDArray[np.float32]
Span = tuple[int, str, int, int]
"""``(target_start, donor_id, donor_start, length)``"""


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    spans: list[Span]
    """Only tokens that are equal on both sides. Ordered by target; a target position occurs once."""
    unequal_tokens: int
    """Target positions that the peer would copy from another token. Not in ``spans``."""
    cpu_ms: float  # the lookup without embedding
    embed_ms: float | None
    similarity: float | None
    miss_reason: str | None


class PeerSemblend:
    """The peer's pipeline. ``tuned=False`` is its defaults.

    ``environment`` adds variables of its own, such as ``SEMBLEND_MULTI_DONOR=1`` for composites on a grid of
    chunks, and ``options`` arguments of its pipeline, such as ``chunk_size`` (default 256) and
    ``min_reuse_ratio`` (0.5). ``model`` may be shared.
    """

    def __init__(
        self,
        *,
        tuned: bool,
        cache_dir: Path | None = None,
        model: SentenceModel | None = None,
        environment: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._cache_dir = cache_dir
        self._environment = CLEAN | (TUNED if tuned else {}) | dict(environment or {})
        self._options = dict(options or {})
        self._model = model or sentence_model()
        self.version, self.embedder = PEER_VERSION, self._model.name  # "minilm" or "hashed-pieces"
        self._modules: dict[str, types.ModuleType] = {}
        self._donors: dict[str, Sequence[int]] = {}
        self._pipeline: Any = None

    def __enter__(self) -> PeerSemblend:
        self._folder = fetch_peer(self._cache_dir)
        stand_in = types.ModuleType(_STAND_IN)
        stand_in.SentenceTransformer = lambda name, device=None: self._model  # type: ignore[attr-defined]
        self._modules = {_STAND_IN: stand_in}
        with self._inside():
            core = importlib.import_module("semblend_core")
            if not Path(str(core.__file__)).is_relative_to(self._folder):
                raise RuntimeError(f"the peer's semblend_core came from {core.__file__}, not {self._folder}")
            self._pipeline = core.SemBlendPipeline(**self._options)
            # Its first calls import modules and load the model: no lookup should pay for that.
            self._pipeline.register_donor("warm-up", list(range(512)), "warm up")
            self._pipeline.find_donor(list(range(1, 513)), "warm up")
            self._pipeline.clear_donors()
        return self

    def __exit__(self, *exc: object) -> None:
        self._pipeline, self._modules, self._donors = None, {}, {}

    @property
    def donors(self) -> int:
        return len(self._donors)

    def register(self, donor_id: str, token_ids: list[int], text: str) -> float:
        """Adds a donor; returns the milliseconds without embedding, which is done once for equal texts.

        The tuned peer embeds all of ``text``: donors that only fill the store may bring less of it.
        """
        self._model.remember = True
        _, cpu_ms, _ = self._timed("register_donor", donor_id, token_ids, text)
        self._model.remember = False
        self._donors[donor_id] = token_ids
        return cpu_ms

    def lookup(self, token_ids: list[int], text: str) -> PeerAnswer:
        """The prompt's donor, if any. One equal to a donor token for token misses by the peer's design."""
        found, cpu_ms, embed_ms = self._timed("find_donor", token_ids, text)
        if (found.rejection_reason or "").startswith("pipeline_error"):
            raise RuntimeError(f"the peer failed: {found.rejection_reason}")
        spans, unequal = _exact_spans(found, token_ids, self._donors)
        return PeerAnswer(
            spans=spans,
            unequal_tokens=unequal,
            cpu_ms=cpu_ms,
            embed_ms=embed_ms if self.embedder == "minilm" else None,
            similarity=float(found.similarity) if found.found else None,
            miss_reason=found.rejection_reason,
        )

    def memory_bytes(self) -> int:
        """What its pipeline holds, without the model. A token id in a list counts as a pointer and an int.

        The empty store already holds 64 MB: per donor, take the difference of two calls.
        """
        return _deep_size(self._pipeline, skip={id(self._model)})

    def _timed(self, call: str, *args: Any) -> tuple[Any, float, float]:
        """The result, the milliseconds without embedding, and those of embedding."""
        with self._inside():
            before, began = self._model.spent_ms, time.perf_counter()
            result = getattr(self._pipeline, call)(*args)
            took = (time.perf_counter() - began) * 1000
        embedding = self._model.spent_ms - before
        return result, took - embedding, embedding

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """The peer's modules, path and variables, and nothing of ours; then everything as it was."""
        ours, path = _take_modules(), sys.path[:]
        variables = {key: os.environ.pop(key) for key in list(os.environ) if key.startswith("SEMBLEND_")}
        os.environ.update(self._environment)
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self._folder))
        try:
            yield
        finally:
            self._modules = _take_modules()
            sys.modules.update(ours)
            sys.path[:] = path
            for key in self._environment:
                os.environ.pop(key, None)
            os.environ.update(variables)


def fetch_peer(cache_dir: Path | None = None) -> Path:
    """The folder to import the peer from. Asks the package index once; later runs need no network."""
    cache = cache_dir or Path(os.environ.get("SEMBLEND_MODEL_CACHE") or "~/.cache/semblend").expanduser()
    folder = cache.resolve() / "peers" / f"semblend-{PEER_VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            target = Path(scratch) / "semblend"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
            subprocess.run([*pip, f"semblend=={PEER_VERSION}"], check=True)
            target.rename(folder)
    return folder


def _take_modules() -> dict[str, types.ModuleType]:
    """Removes from ``sys.modules`` whatever the peer has a name for, and returns it."""
    names = [name for name in sys.modules if name.split(".")[0] in _PEER_NAMES]
    return {name: sys.modules.pop(name) for name in names}


def _exact_spans(found: Any, target: Sequence[int], donors: Mapping[str, Sequence[int]]) -> tuple[list[Span], int]:
    """Its answer, token by token: spans of equal tokens, and the number of unequal ones."""
    spans: list[Span] = []
    unequal = 0
    for action in sorted(found.slot_actions if found.found else (), key=lambda each: each["targetPos"]):
        if action["action"] != "copy_from_donor":
            continue
        position, donor_position = action["targetPos"], action["donorPos"]
        donor_id = action.get("donorId") or found.donor_id
        start, last_donor, donor_start, length = spans[-1] if spans else (0, "", 0, 0)
        if target[position] != donors[donor_id][donor_position]:
            unequal += 1
        elif (position, donor_id, donor_position) == (start + length, last_donor, donor_start + length):
            spans[-1] = (start, donor_id, donor_start, length + 1)
        elif position >= start + length:
            spans.append((position, donor_id, donor_position, 1))
    return spans, unequal


class SentenceModel:
    """As much of a sentence-transformers model as the peer uses. One clock: cutting text is embedding too."""

    max_seq_length = _WINDOW

    def __init__(self, name: str, embed: Callable[[str], Floats]) -> None:
        self.name = name
        self.spent_ms = 0.0
        self.remember = False  # embed a text once; only for donors, what a lookup embeds is timed
        self.encode, decode = self._on_clock(self._vectors), self._on_clock(_PIECES.decode)
        self.tokenizer = types.SimpleNamespace(encode=self._on_clock(_piece_ids), decode=decode)
        self._embed = embed
        self._known: dict[str, Floats] = {}

    def _on_clock(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            result = call(*args, **options)
            self.spent_ms += (time.perf_counter() - began) * 1000
            return result

        return timed

    def _vectors(self, texts: str | list[str], **options: Any) -> Floats:
        if isinstance(texts, list):
            return np.stack([self._vectors(text) for text in texts])
        if not self.remember:
            return self._embed(texts)
        if texts not in self._known:
            self._known[texts] = self._embed(texts)
        return self._known[texts]


def sentence_model() -> SentenceModel:
    """Our MiniLM where it can run, else hashed pieces."""
    try:
        minilm = _EVIDENCE.MiniLMEmbedder(provider="cpu", window=_WINDOW)
    except _EVIDENCE.EvidenceError as error:
        logging.getLogger(__name__).warning("the peer runs on hashed pieces, not on MiniLM: %s", error)
        return SentenceModel("hashed-pieces", hashed_pieces)
    unread = np.zeros(1, dtype=np.int32)  # MiniLM reads the text, not the ids
    return SentenceModel("minilm", lambda text: minilm.embed(_EVIDENCE.Document(unread, text=text))[0])


def hashed_pieces(text: str) -> Floats:
    """A bag of pieces in signed buckets: deterministic, needs no model, knows no meaning."""
    mixed = np.asarray(_piece_ids(text)[: _WINDOW - 2], dtype=np.int64) * 2_654_435_761 >> 7
    counts = np.bincount(mixed % _DIMENSION, weights=1.0 - 2 * (mixed >> 20 & 1), minlength=_DIMENSION)
    return np.asarray(counts / max(float(np.linalg.norm(counts)), 1e-9), dtype=np.float32)


def _piece_ids(text: str, add_special_tokens: bool = False) -> list[int]:
    return list(_PIECES.encode(text, add_special_tokens=add_special_tokens).ids)


_PIECES = tokenizers.Tokenizer(tokenizers.models.WordPiece(_EVIDENCE.bundled_vocabulary(), unk_token="[UNK]"))
_PIECES.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
_PIECES.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
_PIECES.decoder = tokenizers.decoders.WordPiece()


def _deep_size(root: object, *, skip: set[int]) -> int:
    total, seen, queue = 0, set(skip), [root]
    while queue:
        each = queue.pop()
        if id(each) in seen or isinstance(each, type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        if isinstance(each, Mapping):
            queue.extend((*each.keys(), *each.values()))
        elif isinstance(each, list) and each and isinstance(each[0], int):
            total += len(each) * sys.getsizeof(each[0])
        elif isinstance(each, list | tuple | set | frozenset):
            queue.extend(each)
        slots = [name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())]
        queue.extend(getattr(each, name, None) for name in (*slots, "base", "__dict__"))
    return total
