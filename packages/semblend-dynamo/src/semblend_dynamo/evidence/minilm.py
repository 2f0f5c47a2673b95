"""MiniLM sentence vectors through ONNX Runtime, over every part of the text."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semblend_dynamo.evidence.embedder import Document, EvidenceError, Vectors, unit_rows
from semblend_dynamo.evidence.model_files import find_model
from semblend_dynamo.evidence.wordpiece import WordPieces

logger = logging.getLogger(__name__)

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


class MiniLMEmbedder:
    """One vector per window of ``window`` word pieces: mean of the last hidden states, scaled to length one.

    Built on the evidence thread: the constructor loads the model. ``threads`` is small on purpose, and idle
    threads do not spin: the engine's own threads need the cores.
    """

    name = "minilm"

    def __init__(
        self,
        model: str | None = None,
        *,
        provider: str = "auto",
        window: int = 256,
        overlap: int = 32,
        batch_size: int | None = None,
        threads: int = 2,
    ) -> None:
        if window < 8 or (batch_size is not None and batch_size < 1) or threads < 1:
            raise ValueError(f"need window >= 8, batch_size >= 1, threads >= 1, got {window}, {batch_size}, {threads}")
        files = find_model(model)
        self._pieces = WordPieces(files.tokenizer)
        self._session = _open_session(files.model, provider, threads)
        self._inputs = frozenset(each.name for each in self._session.get_inputs())
        self._output, self.dimension = _hidden_states(self._session, files.model)
        self._window = window - 2  # room for the start and end pieces
        self._overlap = overlap
        # A few windows fill a CPU's caches; a GPU wants more at once.
        self._batch_size = batch_size or (16 if self.provider == "cuda" else 4)

    @property
    def provider(self) -> str:
        """``"cpu"`` or ``"cuda"``: where the model really runs."""
        return "cuda" if self._session.get_providers()[0] == CUDA else "cpu"

    def embed(self, document: Document) -> Vectors:
        ids = self._pieces.encode(document.read_text())
        runs = sliding_windows(ids.size, self._window, self._overlap)
        # Several windows are all of one size, so a batch never needs padding and the mean needs no mask.
        windows = [self._framed(ids[start:end]) for start, end in runs]
        if not windows:
            return np.empty((0, self.dimension), dtype=np.float32)
        batches = [windows[i : i + self._batch_size] for i in range(0, len(windows), self._batch_size)]
        return unit_rows(np.concatenate([self._mean_states(np.stack(batch)) for batch in batches]))

    def _framed(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.concatenate(([self._pieces.start_id], ids, [self._pieces.end_id]), dtype=np.int64)

    def _mean_states(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (states,) = self._session.run([self._output], {k: v for k, v in feed.items() if k in self._inputs})
        pooled: npt.NDArray[np.float32] = states.mean(axis=1, dtype=np.float32)
        return pooled


def _open_session(model: Path, provider: str, threads: int) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise EvidenceError("the minilm embedder needs onnxruntime: pip install 'semblend-dynamo[onnx]'") from error
    wanted = _providers(onnxruntime, provider)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(model), options, providers=wanted)
    # The runtime falls back to the CPU without an error when CUDA's libraries do not load.
    if CUDA in wanted and session.get_providers()[0] != CUDA:
        if provider == "cuda":
            raise EvidenceError(
                "SEMBLEND_EMBED_PROVIDER=cuda, but the CUDA provider did not start: install "
                "the CUDA and cuDNN that onnxruntime-gpu was built for, or set it to auto or cpu"
            )
        logger.warning("the CUDA provider did not start: embedding on the CPU (SEMBLEND_EMBED_PROVIDER=auto)")
    return session


def _providers(onnxruntime: Any, provider: str) -> list[str]:
    if provider not in ("auto", "cpu", "cuda"):
        raise ValueError(f"SEMBLEND_EMBED_PROVIDER must be auto, cpu or cuda, got {provider!r}")
    available = onnxruntime.get_available_providers()
    if provider == "cuda" and CUDA not in available:
        raise EvidenceError(
            "SEMBLEND_EMBED_PROVIDER=cuda, but this onnxruntime has no CUDA provider: replace onnxruntime by "
            "onnxruntime-gpu (pip install 'semblend-dynamo[onnx-gpu]'), or set it to auto or cpu"
        )
    if provider == "cpu" or CUDA not in available:
        return [CPU]
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # finds the CUDA libraries that pip installed
    return [CUDA, CPU]


def _hidden_states(session: Any, model: Path) -> tuple[str, int]:
    """The output with one state per piece, found by type and shape: exporters name it differently."""
    for output in session.get_outputs():
        if output.type == "tensor(float)" and len(output.shape) == 3 and isinstance(output.shape[2], int):
            return output.name, output.shape[2]
    raise EvidenceError(f"SEMBLEND_EMBED_MODEL: {model} has no float output of shape [batch, sequence, dimension]")


def sliding_windows(length: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """``(start, end)`` runs covering ``[0, length)``, ``size`` long or all, sharing ``overlap`` or more.

    The last window ends with the sequence and is moved back to full size: a stub of a few tokens would embed
    as noise, and equal sizes batch without padding.
    """
    if not 0 <= overlap < size:
        raise ValueError(f"overlap must be in [0, size), got overlap {overlap} and size {size}")
    if length <= 0:
        return []
    if length <= size:
        return [(0, length)]
    starts = list(range(0, length - size, size - overlap))
    starts.append(length - size)
    return [(start, start + size) for start in starts]
