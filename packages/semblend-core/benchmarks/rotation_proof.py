"""Does the adapters' self-test tell a model's rotation from wrong ones? K and V of layer 0 of real weights, real text.

Only the first layer is loaded, and it is left before its attention. Each prompt is judged by itself; a wrong rotation
is one that the config could have been misread for. Prints a table, then JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lookup_data.documents import load_documents
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.cache_utils import DynamicCache

from semblend_core.kv import Rotation, RotationProof
from semblend_core.kv.equal_tokens import Agreement, EqualTokens
from semblend_core.kv.rope_scaling import inverse_frequencies
from semblend_core.reference.loading import default_model_folder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LENGTHS = (120, 500, 2000)


class ReadEarlyError(Exception):
    """Ends a forward as soon as layer 0 has stored its K and V."""


class FirstLayer(DynamicCache):  # type: ignore[misc]
    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.read = tuple(part[0].transpose(0, 1) for part in (keys, values))
        raise ReadEarlyError


class Model:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder or default_model_folder()
        self.name = self._folder.name
        self.config = AutoConfig.from_pretrained(self._folder)
        self.config.num_hidden_layers = 1
        if getattr(self.config, "layer_types", None):
            self.config.layer_types = self.config.layer_types[:1]
        self.rotation = Rotation.from_config(self.config)
        self._tokenizer = AutoTokenizer.from_pretrained(self._folder)

    def load(self, dtype: torch.dtype) -> None:
        self._model = AutoModel.from_pretrained(self._folder, config=self.config, dtype=dtype).eval()
        for module in self._model.modules():
            if isinstance(module, torch.nn.Linear):
                module.forward = partial(accumulate_in_float32, module)  # type: ignore[method-assign]

    def prompts(self, documents: list[str], tokens: int) -> Iterator[list[int]]:
        for document in documents:
            ids = self._tokenizer(document[: 8 * tokens])["input_ids"]
            if len(ids) >= tokens:
                yield ids[:tokens]

    @torch.inference_mode()
    def first_layer(self, token_ids: list[int]) -> tuple[Tensor, Tensor]:
        cache = FirstLayer()
        try:
            self._model(torch.tensor([token_ids]), past_key_values=cache, use_cache=True)
        except ReadEarlyError:
            keys, values = cache.read
            return keys, values
        raise RuntimeError("the model's first layer stores no KV")


def accumulate_in_float32(linear: torch.nn.Linear, inputs: Tensor) -> Tensor:
    """As GPUs do, rounding once. Not every CPU has bfloat16, and torch's stand-in takes minutes."""
    bias = None if linear.bias is None else linear.bias.float()
    return torch.nn.functional.linear(inputs.float(), linear.weight.float(), bias).to(inputs.dtype)


def hypotheses(model: Model) -> dict[str, Rotation]:
    """The model's rotation, and what it could be taken for."""
    true, fields = model.rotation, model.config.to_dict()
    theta = (fields.get("rope_parameters") or {}).get("rope_theta") or fields.get("rope_theta") or 10_000.0

    def scaled(**parameters: Any) -> Rotation:
        return replace(true, frequencies=inverse_frequencies(true.size, theta, parameters, 8192).double().numpy())

    half = true.size // 2
    other_theta = 1 / np.power(10_000.0 if theta > 100_000 else 1_000_000.0, np.arange(0, true.size, 2) / true.size)
    return {
        "true": true,
        "no rotation in the model": true,
        "other theta": replace(true, frequencies=other_theta),
        "theta a tenth off": replace(true, frequencies=true.frequencies * 0.9 ** np.linspace(0, 1, half)),
        "other pairs": replace(true, interleaved=not true.interleaved),
        "half as many components": replace(true, size=half, frequencies=true.frequencies[::2]),
        "other direction": replace(true, frequencies=-true.frequencies),
        "linear scaling by 2": scaled(rope_type="linear", factor=2.0),
        "llama3 scaling by 8": scaled(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=8192,
        ),
        "YaRN by 4": scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768),
    }


@dataclass
class Row:
    model: str
    dtype: str
    rotation: str
    prompt_tokens: int
    prompts: int
    agree: int
    plain: int
    turned: float
    """The worst band of the worst prompt."""
    unturned: float
    """Over the bands in which a turn shows, mean of the prompts."""
    limit: float
    visible_bands: str
    after_three: str
    """What the self-test says after three prompts."""
    judge_ms: float


def judged(model: Model, dtype_name: str, prompts: dict[int, list[list[int]]]) -> Iterator[Row]:
    dtype = DTYPES[dtype_name]
    model.load(dtype)
    for tokens, several in prompts.items():
        stored = [model.first_layer(prompt) for prompt in several]
        for name, rotation in hypotheses(model).items():
            proof, seen, began = RotationProof(rotation), [], time.perf_counter()
            for prompt, (keys, values) in zip(several, stored, strict=True):
                pairs = EqualTokens.of(prompt)
                if pairs is None:
                    continue
                if name == "no rotation in the model":
                    keys = model.rotation.rotate(keys.float(), -np.arange(tokens)).to(dtype)
                read = [(part[pairs.first], part[pairs.later]) for part in (keys, values)]
                seen.append(Agreement.between(pairs, read[0], read[1], rotation))
                if len(seen) <= 3:
                    proof.judge(pairs, read[0], read[1])
            spent = (time.perf_counter() - began) * 1e3 / (len(seen) + min(len(seen), 3))
            yield row_of(model.name, dtype_name, name, tokens, seen, str(proof.result.state), spent)


def row_of(model: str, dtype: str, name: str, tokens: int, seen: list[Agreement], state: str, spent: float) -> Row:
    worst = max(seen, key=lambda each: float(np.max(each.turned / each.limit)))
    unturned = [float(np.sqrt(np.mean(np.square(each.unturned[each.visible])))) for each in seen if each.visible.any()]
    return Row(
        model=model,
        dtype=dtype,
        rotation=name,
        prompt_tokens=tokens,
        prompts=len(seen),
        agree=sum(each.agrees for each in seen),
        plain=sum(each.plainly_disagrees for each in seen),
        turned=float(np.max(worst.turned)),
        unturned=float(np.mean(unturned)) if unturned else 0.0,
        limit=float(worst.limit[np.argmax(worst.turned / worst.limit)]),
        visible_bands=f"{np.count_nonzero(worst.visible)} of {np.count_nonzero(worst.frequencies)}",
        after_three=state,
        judge_ms=spent,
    )


def print_table(rows: list[Row]) -> None:
    columns = list(asdict(rows[0]))
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        cells = (f"{cell:.2g}" if isinstance(cell, float) else str(cell) for cell in asdict(row).values())
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder in Hugging Face's form; SmolLM2 if not given")
    parser.add_argument("--data", type=Path, help="a folder of documents")
    parser.add_argument("--prompts", type=int, default=10, help="for each length")
    parser.add_argument("--quick", action="store_true", help="three prompts of the shorter lengths")
    options = parser.parse_args()
    model = Model(options.model)
    lengths, count = (LENGTHS[:2], 3) if options.quick else (LENGTHS, options.prompts)
    documents = load_documents(options.data)
    documents = documents[:: max(1, len(documents) // (2 * count))]
    prompts = {tokens: list(model.prompts(documents, tokens))[:count] for tokens in lengths}
    rows = [row for dtype in DTYPES for row in judged(model, dtype, prompts)]
    print_table(rows)
    print(json.dumps({"model": model.name, "torch": torch.__version__, "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
