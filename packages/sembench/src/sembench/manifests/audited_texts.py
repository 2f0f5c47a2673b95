"""The texts of a manifest by the source they come from, as hashed windows of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sembench.manifests.items import ReportProgress
from sembench.schema import DonorPrompt, InputError, ManifestItem
from sembench.tokenization import Tokenizer

WindowHashes = npt.NDArray[np.uint64]

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_EMPTY: WindowHashes = np.empty(0, np.uint64)
Texts = dict[str, set[str]]


def hash_windows(tokens: npt.NDArray[np.int32] | list[int], size: int) -> WindowHashes:
    """The hash of each run of ``size`` tokens, in order; empty where there are fewer.

    64 bits: among a hundred million different runs two agree by chance about once in four thousand audits.
    """
    ids = np.asarray(tokens).astype(np.uint64)
    count = len(ids) - size + 1
    if count <= 0:
        return _EMPTY
    with np.errstate(over="ignore"):
        # Mixed first: neighbouring ids would otherwise cancel out in the sum.
        mixed = (ids + np.uint64(1)) * _MIX
        mixed ^= mixed >> np.uint64(29)
        total = np.zeros(count, np.uint64)
        for offset in range(size):
            total = total * _MULTIPLIER + mixed[offset : offset + count]
        return total ^ (total >> np.uint64(32))


def unite(parts: list[WindowHashes]) -> WindowHashes:
    return np.unique(np.concatenate(parts)) if parts else _EMPTY


@dataclass(frozen=True)
class Corpus:
    """Windows by source: of evidence in recipients, of evidence in donors, and of what frames it."""

    names: dict[str, str]
    """Source to what a reader calls it."""
    recipients: dict[str, WindowHashes]
    donors: dict[str, WindowHashes]
    frames: dict[str, WindowHashes]
    _texts: Texts
    _hashed: dict[str, WindowHashes]
    _tokenizer: Tokenizer
    _block_size: int

    def evidence_of(self, text: str, metadata: dict[str, Any]) -> WindowHashes:
        return unite([self._hashed[part] for part in _evidence(text, metadata)])

    def windows_of(self, prompt: str) -> WindowHashes:
        """Of a whole prompt."""
        return hash_windows(self._tokenizer.encode(prompt), self._block_size)

    def example(self, source: str, common: WindowHashes) -> str | None:
        """The first text of a recipient of the source that is among the windows."""
        for text in sorted(self._texts[source]):
            places = np.flatnonzero(np.isin(self._hashed[text], common))
            if len(places):
                start = _characters(text, int(places[0]) + 1, self._tokenizer) - 1
                return text[max(0, start) : _characters(text, int(places[0]) + self._block_size, self._tokenizer)]
        return None


def collect_texts(
    items: Sequence[ManifestItem], tokenizer: Tokenizer, block_size: int, report: ReportProgress
) -> Corpus:
    """A text that stands in several prompts is tokenized once."""
    names: dict[str, str] = {}
    recipients: Texts = {}
    donors: Texts = {}
    frames: Texts = {}

    def put(source: tuple[str, str], evidence: Texts, text: str, metadata: dict[str, Any]) -> None:
        key, name = source
        names.setdefault(key, name)
        for texts in (recipients, donors, frames):
            texts.setdefault(key, set())
        evidence[key].update(_evidence(text, metadata))
        frames[key].update(_frames(text, metadata))

    for item in items:
        put(_source_of(item), recipients, item.recipient_prompt, item.metadata)
        for donor in item.donor_prompts:
            put(_donor_source_of(item, donor), donors, donor.text, donor.metadata)
    hashed = _hashed((recipients, donors, frames), tokenizer, block_size, report)
    return Corpus(
        names,
        _windows(recipients, hashed),
        _windows(donors, hashed),
        _windows(frames, hashed),
        recipients,
        hashed,
        tokenizer,
        block_size,
    )


def _source_of(item: ManifestItem) -> tuple[str, str]:
    """Key and name. Two rows about one document are one source."""
    name = f"{item.dataset}/{item.source_id}"
    return str(item.metadata.get("document_id", name)), name


def _donor_source_of(item: ManifestItem, donor: DonorPrompt) -> tuple[str, str]:
    """A donor of a negative control that does not say where it comes from is a source of its own."""
    metadata = donor.metadata
    if "source_id" in metadata:
        name = f"{metadata.get('dataset', item.dataset)}/{metadata['source_id']}"
        return str(metadata.get("document_id", name)), name
    if item.negative_control:
        return donor.donor_id, f"donor {donor.donor_id}"
    return _source_of(item)


def _evidence(text: str, metadata: dict[str, Any]) -> list[str]:
    return [text[start:end] for start, end in _spans(text, metadata)]


def _frames(text: str, metadata: dict[str, Any]) -> list[str]:
    edges = [0, *(edge for span in _spans(text, metadata) for edge in span), len(text)]
    return [text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]


def _spans(text: str, metadata: dict[str, Any]) -> list[tuple[int, int]]:
    """A prompt whose evidence is not marked is evidence altogether."""
    spans = metadata.get("evidence_spans", [(0, len(text))])
    try:
        return [(int(start), int(end)) for start, end in spans]
    except (TypeError, ValueError):
        raise InputError("metadata.evidence_spans: expected a list of [start, end] in characters") from None


def _hashed(
    parts: tuple[Texts, ...], tokenizer: Tokenizer, block_size: int, report: ReportProgress
) -> dict[str, WindowHashes]:
    texts = sorted({text for part in parts for group in part.values() for text in group})
    hashed = {}
    for done, (text, tokens) in enumerate(zip(texts, tokenizer.encode_batch(texts), strict=True), 1):
        hashed[text] = hash_windows(tokens, block_size)
        report("texts", done, len(texts))
    return hashed


def _windows(texts: Texts, hashed: dict[str, WindowHashes]) -> dict[str, WindowHashes]:
    return {source: unite([hashed[text] for text in group]) for source, group in texts.items()}


def _characters(text: str, tokens: int, tokenizer: Tokenizer) -> int:
    """How many characters the first ``tokens`` tokens take, by halving: a tokenizer here only goes one way."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high) // 2
        if len(tokenizer.encode(text[:middle])) < tokens:
            low = middle + 1
        else:
            high = middle
    return low
