"""Measure an embedder on your own text: ``python -m semblend_dynamo.evidence FILE FILE ...``

Each file is one document. It is compared with itself behind a new instruction with its halves swapped (what
reuse looks for), its second half with its first (same subject, other words), and with every other document.
"""

from __future__ import annotations

import argparse
import time
import zlib
from pathlib import Path

import numpy as np

from semblend_dynamo.evidence.donor_rows import mean_of_best
from semblend_dynamo.evidence.embedder import Document, Embedder, Vectors
from semblend_dynamo.evidence.opening import embedder_builder

INSTRUCTION = "Answer the question with the text below and nothing else. Quote the passage that you rely on.\n"


def main() -> None:
    options = _parse()
    texts = [path.read_text(errors="replace")[: options.characters] for path in options.files]
    build = embedder_builder(options.embedder, model=options.model, provider=options.provider)
    assert build is not None
    began = time.perf_counter()
    embedder = build()
    print(f"load              {time.perf_counter() - began:8.2f} s")
    embedder.embed(_document("warm up " * 300))
    began = time.perf_counter()
    whole = [embedder.embed(_document(text)) for text in texts]
    print(f"embed             {(time.perf_counter() - began) / len(texts) * 1000:8.0f} ms a document")
    print(f"vectors           {np.mean([len(vectors) for vectors in whole]):8.1f} a document, mean")
    _report(embedder, texts, whole)


def _report(embedder: Embedder, texts: list[str], whole: list[Vectors]) -> None:
    heads = [embedder.embed(_document(text[: len(text) // 2])) for text in texts]
    tails = [embedder.embed(_document(text[len(text) // 2 :])) for text in texts]
    moved = [
        embedder.embed(_document(INSTRUCTION + text[len(text) // 2 :] + "\n" + text[: len(text) // 2]))
        for text in texts
    ]
    everything = range(len(texts))
    _line("halves swapped", [_similarity(moved[i], whole[i]) for i in everything])
    _line("half and half", [_similarity(tails[i], heads[i]) for i in everything])
    _line("other documents", [_similarity(moved[i], whole[j]) for i in everything for j in everything if i != j])
    first = [int(np.argmax([_similarity(query, donor) for donor in whole])) for query in moved]
    print(f"own donor first   {np.mean([found == i for i, found in enumerate(first)]):8.2f} of documents")


def _similarity(query: Vectors, donor: Vectors) -> float:
    return float(mean_of_best(donor, np.zeros(1, dtype=np.intp), query)[0])


def _line(name: str, values: list[float]) -> None:
    if values:
        low, middle, high = np.quantile(values, [0.01, 0.5, 0.99])
        print(f"{name:17} {low:8.2f} .. {middle:.2f} .. {high:.2f}   (1% .. median .. 99%)")


def _document(text: str) -> Document:
    # Words stand for tokens where the embedder reads ids: no engine's tokenizer is needed to measure.
    ids = np.asarray([zlib.crc32(word.encode()) & 0x7FFFFFFF for word in text.split()], dtype=np.int32)
    return Document(ids, text=text)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m semblend_dynamo.evidence", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--embedder", choices=["minilm", "jaccard"], default="minilm")
    parser.add_argument("--model", help="as SEMBLEND_EMBED_MODEL")
    parser.add_argument("--provider", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--characters", type=int, default=36_000, help="cut each file to so many; about 8K tokens")
    return parser.parse_args()


if __name__ == "__main__":
    main()
