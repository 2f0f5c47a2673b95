"""How long does it take to tell weights by their content? A checkpoint that lies here, and files as large as others'.

The files of the others are sparse: they have every tensor of their model, and a disk has nothing to read for them. So
their times are the processor's. Prints one JSON object per checkpoint, then one of all.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from semblend_core import identity_of_weights
from semblend_core.contract import weights

Shapes = dict[str, tuple[int, ...]]
BYTES_PER_NUMBER = 2


def dense(layers: int, hidden: int, inner: int, kv: int, vocabulary: int) -> list[Shapes]:
    """By layer, embeddings and head in front."""
    model: list[Shapes] = [{"model.embed_tokens.weight": (vocabulary, hidden), "lm_head.weight": (vocabulary, hidden)}]
    for layer in range(layers):
        shapes: Shapes = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        shapes |= {"q_proj": (hidden, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}
        shapes |= {"o_proj": (hidden, hidden), "up_proj": (inner, hidden), "gate_proj": (inner, hidden)}
        shapes["down_proj"] = (hidden, inner)
        model.append({f"model.layers.{layer}.{name}.weight": shape for name, shape in shapes.items()})
    return model


MODELS = {
    "dense 8B": dense(32, 4096, 14_336, 1024, 128_256),
    "dense 70B": dense(80, 8192, 28_672, 1024, 128_256),
    "dense 405B": dense(126, 16_384, 53_248, 2048, 128_256),
}


def write_sparse(folder: Path, model: list[Shapes], layers_per_file: int = 3) -> None:
    for first in range(0, len(model), layers_per_file):
        entries, offset = {}, 0
        for shapes in model[first : first + layers_per_file]:
            for name, shape in shapes.items():
                size = BYTES_PER_NUMBER
                for length in shape:
                    size *= length
                about = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
                entries[name] = about
                offset += size
        header = json.dumps(entries).encode()
        with open(folder / f"model-{first:05}.safetensors", "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + offset)


def forget_cached(folder: Path) -> None:
    """What the kernel holds of these files. It keeps what it must."""
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds(folder: Path, *, cold: bool) -> float:
    weights._READ.clear()
    if cold:
        forget_cached(folder)
    start = time.perf_counter()
    identity_of_weights(folder)
    return time.perf_counter() - start


def measure(name: str, folder: Path) -> dict[str, object]:
    files = list(folder.glob("*.safetensors"))
    times = [seconds(folder, cold=True), *(seconds(folder, cold=False) for _ in range(3))]
    return {
        "checkpoint": name,
        "files": len(files),
        "gib": round(sum(path.stat().st_size for path in files) / 2**30, 1),
        "first_s": round(times[0], 3),
        "again_s": round(min(times[1:]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder with safetensors")
    parser.add_argument("--quick", action="store_true", help="the smallest model only")
    options = parser.parse_args()
    results = [measure(options.model.name, options.model)] if options.model else []
    for name, model in list(MODELS.items())[: 1 if options.quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            write_sparse(Path(folder), model)
            results.append(measure(f"{name}, sparse", Path(folder)))
    for result in results:
        print(json.dumps(result))
    print(json.dumps({"benchmark": "weights_identity", "results": results}))


if __name__ == "__main__":
    main()
