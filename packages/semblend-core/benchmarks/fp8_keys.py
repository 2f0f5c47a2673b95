"""Does fp8 keep enough of a model's keys for them to be moved? K of all layers of real weights, real text.

Pieces of the text are computed by the reference engine and rounded to fp8. Prints what the adapters' self-test finds,
the layers that lose most first.

python benchmarks/fp8_keys.py --text ../../docs/architecture.md
python benchmarks/fp8_keys.py --model qwen.gguf --text ../../docs/architecture.md --tokens 100 300 800
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from semblend_core import TokenIds, as_token_ids
from semblend_core.kv.equal_tokens import EqualTokens
from semblend_core.kv.layout import FP8_LARGEST, narrow
from semblend_core.kv.second_rounding import MOST, SecondRounding
from semblend_core.reference import ReferenceEngine
from semblend_core.reference.loading import default_model_folder

LAYERS_SHOWN = 3


def tokenizer_of(model: Path) -> PreTrainedTokenizerBase:
    if model.suffix == ".gguf":
        return AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    return AutoTokenizer.from_pretrained(model)


def measure(engine: ReferenceEngine, tokens: TokenIds) -> None:
    pairs = EqualTokens.of(tokens)
    if pairs is None:
        raise SystemExit(f"{tokens.size} tokens hold too few of them twice: give a longer text")
    keys = engine.capture(engine.prefill(tokens).workspace, tokens.size).keys[:, pairs.first].cpu()
    for dtype in FP8_LARGEST:
        found = []
        for layer, stored in enumerate(narrow(keys.bfloat16().float(), dtype).unbind()):
            of_layer = SecondRounding.of(stored[None], pairs.first, [engine.rotation])
            assert of_layer is not None
            found.append((of_layer.share, layer))
        worst = ", ".join(f"{share:.3f} (layer {layer})" for share, layer in sorted(found)[: -LAYERS_SHOWN - 1 : -1])
        mean = sum(share for share, _ in found) / len(found)
        print(f"| {tokens.size} | {str(dtype).removeprefix('torch.')} | {worst} | {mean:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, help="a folder in Hugging Face's form or a GGUF file; SmolLM2 if not given"
    )
    parser.add_argument("--text", type=Path, required=True, help="a file")
    parser.add_argument("--tokens", type=int, nargs="+", default=[100, 300, 800], help="of the text's beginning")
    options = parser.parse_args()
    model = options.model or default_model_folder()
    tokens = as_token_ids(tokenizer_of(model)(options.text.read_text(), add_special_tokens=False)["input_ids"])
    engine = ReferenceEngine.load(model)
    print(f"| tokens | type | layers that lose most (limit {MOST:g}) | mean of all layers |\n|---|---|---|---|")
    for count in options.tokens:
        measure(engine, tokens[:count])


if __name__ == "__main__":
    main()
