"""A real SGLang, stock or with SemBlend, and prompts that share nothing but what is meant."""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

INSTRUCTION, QUESTION, HEADER = 61, 64, 16
PASSAGES = 4


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=Path, help="folder with a config.json; weights are dummies, times do not need them"
    )
    parser.add_argument("--tier", default="fast", choices=("fast", "balanced", "strict"))
    parser.add_argument("--memory", type=float, default=0.6, help="share of the GPU that SGLang takes")
    parser.add_argument("--attention", default="triton", help="SGLang's attention backend")
    parser.add_argument("--graphs", action="store_true", help="with CUDA graphs")
    parser.add_argument("--no-overlap", action="store_true", help="without the overlapped scheduler")
    parser.add_argument("--stock", action="store_true", help="SGLang without SemBlend")
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=32768, help="chunked_prefill_size")
    parser.add_argument("--requests-in-flight", type=int, default=64, help="max_running_requests")
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--cpu", action="store_true", help="try the script out: no GPU, small pool, float32")
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--json", type=Path, help="write the results here too")


class Engine:
    def __init__(self, options: argparse.Namespace, *, inspected: bool = False) -> None:
        self._inspection = Path(tempfile.mkdtemp()) / "inspection.jsonl"
        os.environ.update(SEMBLEND_QUALITY_TIER=options.tier)
        if inspected:
            os.environ.update(
                SEMBLEND_BENCHMARK_INSPECTION=str(self._inspection),
                SEMBLEND_SGLANG_PROVIDER="_inspection:provider",
                PYTHONPATH=os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
            )
        if options.stock:
            os.environ["SGLANG_PLUGINS"] = "none"
        import sglang

        arguments: dict[str, Any] = {
            "model_path": str(options.model),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "attention_backend": options.attention,
            "sampling_backend": "pytorch",
            "grammar_backend": "none",
            "disable_cuda_graph": not options.graphs,
            "disable_overlap_schedule": options.no_overlap,
            "mem_fraction_static": options.memory,
            "context_length": options.context,
            "chunked_prefill_size": options.chunk,
            "max_prefill_tokens": options.chunk,
            "max_running_requests": options.requests_in_flight,
            "page_size": options.page_size,
            "log_level": "warning",
        }
        if not options.stock:
            arguments["radix_cache_backend"] = "semblend"
        if options.cpu:
            arguments |= {"device": "cpu", "attention_backend": "torch_native", "dtype": "float32"}
            arguments |= {"max_total_tokens": 20_000, "mem_fraction_static": 0.3}
        self.engine = sglang.Engine(**arguments)

    def first_token_ms(self, tokens: list[int], *, reuse: bool = True) -> tuple[float, int]:
        """Milliseconds, and the tokens that SGLang says it did not compute."""
        sampling = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
        if not reuse:
            sampling["custom_params"] = {"semblend": "off"}
        gc.collect()
        started = time.perf_counter()
        output = self.engine.generate(input_ids=tokens, sampling_params=sampling)
        return (time.perf_counter() - started) * 1e3, output["meta_info"]["cached_tokens"]

    def serve(self, prompts: list[list[int]], output_tokens: int, *, capture: bool = True) -> None:
        """All at once; SGLang keeps as many in flight as ``--requests-in-flight`` allows."""
        sampling = {
            "max_new_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "custom_params": {"semblend": {"mode": "on", "capture": capture}},
        }
        self.engine.generate(input_ids=prompts, sampling_params=[sampling] * len(prompts))

    def first_layer_errors(self, tokens: list[int]) -> dict[str, Any]:
        """Serve ``tokens`` with reuse, then cold: how relocated K and V of layer 0 differ from computed ones."""
        marker = Path(f"{self._inspection}.compare")
        marker.touch()
        try:
            _, reused = self.first_token_ms(tokens)
            _, cached = self.first_token_ms(tokens, reuse=False)
        finally:
            marker.unlink()
        found = [entry for entry in self.inspection() if entry["what"] == "compared"]
        return {"reused": reused, "cached_when_cold": cached, **(found[-1] if found else {})}

    def outcomes(self) -> list[str]:
        return [f"{entry['kind']} {entry['reason'] or ''}" for entry in self.inspection() if entry["what"] == "outcome"]

    def inspection(self) -> list[dict[str, Any]]:
        """What was noted inside the scheduler's process."""
        if not self._inspection.exists():
            return []
        return [json.loads(line) for line in self._inspection.read_text().splitlines()]

    def close(self) -> None:
        self.engine.shutdown()


class Prompts:
    """Random ids: no two prompts share anything but what is meant."""

    def __init__(self, vocabulary: int, seed: int = 7) -> None:
        self._source, self._vocabulary = random.Random(seed), vocabulary
        self._begun_with: set[int] = set()

    def fresh(self, tokens: int) -> list[int]:
        drawn = [self._source.randrange(1000, self._vocabulary) for _ in range(tokens)]
        while drawn[0] in self._begun_with:  # Or the exact cache would find one token of another prompt.
            drawn[0] = self._source.randrange(1000, self._vocabulary)
        self._begun_with.add(drawn[0])
        return drawn

    def new_instruction(self, size: int) -> tuple[list[list[int]], list[int]]:
        document = self.fresh(size - INSTRUCTION - QUESTION)
        donor = self.fresh(48) + document + self.fresh(QUESTION)
        return [donor], self.fresh(INSTRUCTION) + document + self.fresh(QUESTION)

    def same_place(self, size: int) -> tuple[list[list[int]], list[int]]:
        """Nothing moves: the instruction is as long as the donor's."""
        document = self.fresh(size - INSTRUCTION - QUESTION)
        donor = self.fresh(INSTRUCTION) + document + self.fresh(QUESTION)
        return [donor], self.fresh(INSTRUCTION) + document + self.fresh(QUESTION)

    def reorder(self, size: int) -> tuple[list[list[int]], list[int]]:
        passages = [self.fresh((size - QUESTION) // PASSAGES - HEADER) for _ in range(PASSAGES)]
        donor = self.fresh(48) + [token for passage in passages for token in passage] + self.fresh(QUESTION)
        return [donor[: size - 1]], self._composed([passages[i] for i in (2, 0, 3, 1)])

    def composite(self, size: int) -> tuple[list[list[int]], list[int]]:
        passages = [self.fresh((size - QUESTION) // PASSAGES - HEADER) for _ in range(PASSAGES)]
        donors = [self.fresh(48) + passage + self.fresh(QUESTION) for passage in passages]
        return donors, self._composed(passages)

    def _composed(self, passages: list[list[int]]) -> list[int]:
        return [token for passage in passages for token in self.fresh(HEADER) + passage] + self.fresh(QUESTION)
