"""A real SGLang, stock or with SemBlend."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

from semblend_core.testing.benchmarks import Answer, checked, endurance
from semblend_sglang.compat.support import resolved

NEARLY_ALL = 0.95
SHORT = 16
"""Tokens of a prompt that nothing is reused for."""


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    about_model = "folder with a config.json, and with weights where they are real"
    parser.add_argument("model", type=checked.model_folder, help=about_model)
    parser.add_argument("--real-weights", action="store_true", help="load them; else they are dummies")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--kv-cache-dtype", default="auto", help="such as fp8_e4m3")
    parser.add_argument("--tier", default="fast", choices=("fast", "balanced", "strict"))
    parser.add_argument("--memory", type=checked.from_0_to_1, default=0.6, help="share of the GPU that SGLang takes")
    parser.add_argument("--kv-tokens", type=checked.positive, help="size of the KV pool; default: what --memory leaves")
    parser.add_argument("--attention", default="triton", help="SGLang's attention backend")
    parser.add_argument("--graphs", action="store_true", help="with CUDA graphs")
    parser.add_argument(
        "--graph-tokens",
        type=checked.positive,
        default=2048,
        help="largest captured prefill: SGLang's default, --chunk, takes minutes",
    )
    parser.add_argument("--no-overlap", action="store_true", help="without the overlapped scheduler")
    parser.add_argument("--stock", action="store_true", help="SGLang without SemBlend")
    parser.add_argument("--page-size", type=checked.positive, default=1)
    parser.add_argument("--chunk", type=checked.positive, default=32768, help="chunked_prefill_size")
    parser.add_argument("--requests-in-flight", type=checked.positive, default=64, help="max_running_requests")
    parser.add_argument("--context", type=checked.positive, default=32768)
    parser.add_argument("--cpu", action="store_true", help="try the script out: no GPU, small pool")
    parser.add_argument("--json", type=checked.file_to_write, help="write the results here too")


class Engine:
    """Answers what the shared benchmarks ask of an engine, and what those of this folder do."""

    def __init__(self, options: argparse.Namespace, *, inspected: bool = False, timed: bool = False) -> None:
        """``inspected``: how requests end is noted. ``timed``: SemBlend's steps are timed too, and KV compared."""
        self._inspection = Path(tempfile.mkdtemp()) / "inspection.jsonl"
        self._served, self._read_to, self.block_tokens = 0, 0, options.page_size
        self._is_stock = options.stock
        os.environ.update(SEMBLEND_QUALITY_TIER=options.tier)
        # Costs are learned from nothing, unless somebody names a folder of learned ones.
        os.environ.setdefault("SEMBLEND_COST_DIR", "none")
        os.environ.setdefault("SEMBLEND_CACHED_TOKENS", "exact")
        if options.cpu:
            os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
            os.environ.setdefault("SEMBLEND_LOOKUP_BUDGET_MS", "1000")  # A busy machine is no reason to decline.
        if timed:
            Path(f"{self._inspection}.timed").touch()
        if inspected or timed:
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
            "load_format": "auto" if options.real_weights else "dummy",
            "dtype": options.dtype,
            "kv_cache_dtype": options.kv_cache_dtype,
            "skip_tokenizer_init": True,
            "attention_backend": options.attention,
            "sampling_backend": "pytorch",
            "grammar_backend": "none",
            "disable_cuda_graph": not options.graphs,
            "disable_overlap_schedule": options.no_overlap,
            # A share of what is free, which another engine has taken from. A size that is named is a limit by itself.
            "mem_fraction_static": NEARLY_ALL if options.kv_tokens else options.memory,
            "context_length": options.context,
            "chunked_prefill_size": options.chunk,
            "max_prefill_tokens": options.chunk,
            "max_running_requests": options.requests_in_flight,
            "page_size": options.page_size,
            "log_level": "warning",
        }
        if options.graphs:
            arguments["cuda_graph_max_bs_prefill"] = min(options.graph_tokens, options.chunk)
            arguments["cuda_graph_max_bs_decode"] = options.requests_in_flight
        if not options.stock:
            arguments["radix_cache_backend"] = "semblend"
        if options.cpu:
            arguments |= {"device": "cpu", "attention_backend": "torch_native", "max_total_tokens": 20_000}
            arguments["sleep_on_idle"] = True  # Another engine on the same few cores may be at work.
        if options.kv_tokens:
            arguments["max_total_tokens"] = options.kv_tokens
        self.engine = sglang.Engine(**arguments)
        # `ask` collects before it times: without what lives for ever, which takes half a second here.
        gc.collect()
        gc.freeze()

    def first_token_ms(self, tokens: list[int], *, reuse: bool = True) -> tuple[float, int]:
        """Milliseconds, and the tokens that SGLang says it did not compute."""
        sampling = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
        if not reuse:
            sampling["custom_params"] = {"semblend": "off"}
        gc.collect()
        started = time.perf_counter()
        output = self.engine.generate(input_ids=tokens, sampling_params=sampling)
        return (time.perf_counter() - started) * 1e3, output["meta_info"]["cached_tokens"]

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

    def last_outcomes(self) -> list[str]:
        return [f"{entry['kind']} {entry['reason'] or ''}" for entry in self._of_kind("outcome")[-4:]]

    def inspection(self) -> list[dict[str, Any]]:
        """What was noted inside the scheduler's process."""
        if not self._inspection.exists():
            return []
        return [json.loads(line) for line in self._inspection.read_text().splitlines()]

    def close(self) -> None:
        self.engine.shutdown()

    def runs_with(self) -> dict[str, Any]:
        """What SGLang has decided for what was asked, and how many prefills replayed a graph, where that was noted."""
        arguments = resolved(self.engine.server_args)
        replays = self._of_kind("prefill")
        return {
            "engine": self.name,
            "attention": arguments.attention_backend,
            "prefill_graphs": str(getattr(getattr(arguments.cuda_graph_config, "prefill", None), "backend", None)),
            "replayed": {
                kind: f"{sum(found)} of {len(found)}"
                for kind, rows in (("with_rows", True), ("without", False))
                for found in [[each["replayed"] for each in replays if each["rows"] is rows]]
            },
        }

    # --- What the shared benchmarks ask; they want it inspected ------------------------------------------------------

    @property
    def name(self) -> str:
        from sglang import __version__

        return f"SGLang {__version__}"

    @property
    def kv_tokens(self) -> int:
        return int(self.engine.get_server_info()["max_total_num_tokens"])

    def ask(
        self, prompts: Sequence[Sequence[int]], *, salt: str, reuse: bool = True, output_tokens: int = 1, top: int = 0
    ) -> list[Answer]:
        gc.collect()
        asked = [self._ask(list(prompt), salt, reuse, output_tokens, top) for prompt in prompts]

        async def together() -> list[Answer]:
            return await asyncio.gather(*asked)

        return self.run(together())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """On SGLang's event loop."""
        return self.engine.loop.run_until_complete(work)

    async def _ask(self, prompt: list[int], salt: str, reuse: bool, output_tokens: int, top: int) -> Answer:
        begun, first, tokens, last = time.perf_counter(), 0.0, (), {}
        limits = {"salt": salt, "wish": "on" if reuse else "off", "output_tokens": output_tokens, "top": top}
        async for new, said in self.pieces(prompt, **limits):
            first, tokens, last = first or time.perf_counter(), (*tokens, *new), said
        sizes = last["prompt_tokens"], last["cached_tokens"]
        return Answer(last["id"], *sizes, (first - begun) * 1e3, tokens, top_logprobs(last))

    async def pieces(
        self, prompt: list[int], *, salt: str, wish: Any, output_tokens: int, top: int
    ) -> AsyncIterator[tuple[tuple[int, ...], dict[str, Any]]]:
        """New tokens, and what SGLang says with them."""
        from sglang.srt.managers.io_struct import GenerateReqInput

        self._served += 1
        request = GenerateReqInput(
            input_ids=prompt,
            sampling_params={
                "max_new_tokens": output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "custom_params": {"semblend": wish},
            },
            return_logprob=top > 0,
            top_logprobs_num=top,
            stream=True,
            rid=f"bench-{self._served}",
            extra_key=salt,  # Every release knows it; not every Python API passes a salt on.
        )
        known = 0
        async for piece in self.engine.tokenizer_manager.generate_request(request, None):
            told, so_far = piece["output_ids"], piece["meta_info"]["completion_tokens"]
            # Releases differ in whether a piece holds what is new, or all so far.
            yield tuple(told[known - so_far + len(told) :]), piece["meta_info"]
            known = so_far

    def settle(self) -> None:
        """Donors lie in SGLang's own tree as soon as a prompt is computed."""

    def outcomes(self, answers: Sequence[Answer]) -> Counter[str]:
        ended = {entry["request"]: entry["reason"] or entry["kind"] for entry in self._of_kind("outcome")}
        return Counter(ended.get(answer.request_id, "none") for answer in answers)

    def confirmed_tokens(self) -> int:
        return sum(entry["tokens"] or 0 for entry in self._of_kind("outcome"))

    def self_test(self) -> tuple[str, str]:
        noted = self._of_kind("self_test")
        return (noted[-1]["state"], noted[-1]["says"]) if noted else ("pending", "")

    def probes(self) -> Counter[str]:
        """What became of the forwards that looked where a question looks."""
        return Counter(entry["end"] for entry in self._of_kind("probe"))

    def most_kv_tokens(self) -> int:
        """Counted by the scheduler as requests end."""
        held = [entry["tokens"] for entry in self._of_kind("held")]
        most, self._read_to = max(held[self._read_to :], default=0), len(held)
        return most

    def held(self) -> endurance.Held:
        """Counted as a short request ends that is alone: what is held beyond its own was left by others.

        A stock engine has nobody who counts; it looks for leaks itself when it is idle.
        """
        if self._is_stock:
            return endurance.Held(0, 0, 0, Counter())
        marker, before = Path(f"{self._inspection}.count"), len(self._of_kind("counted"))
        marker.touch()
        try:
            self.ask([list(range(1000, 1000 + SHORT))], salt="counting", reuse=False)
            deadline = time.monotonic() + 60
            while len(counted := self._of_kind("counted")) == before:
                assert time.monotonic() < deadline, "SGLang's scheduler counted nothing"
                time.sleep(0.1)
        finally:
            marker.unlink()
        left = max(0, self._of_kind("held")[-1]["tokens"] - SHORT - 1)
        noted = counted[-1]
        return endurance.Held(left, noted["pinned"], noted["requests"], Counter(noted["books"]))

    def _of_kind(self, what: str) -> list[dict[str, Any]]:
        return [entry for entry in self.inspection() if entry["what"] == what]


def top_logprobs(said: dict[str, Any]) -> tuple[dict[int, float], ...]:
    return tuple({token: value for value, token, _ in step} for step in said.get("output_top_logprobs") or ())
