"""A real vLLM in this process, stock or with SemBlend."""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from semblend_core import Outcome, SelfTestResult, SelfTestState
from semblend_core.testing import held_by
from semblend_core.testing.benchmarks import Answer, checked, endurance

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
BLOCK, CPU_BLOCK = 16, 32
"""vLLM's own, and what its attention on CPU wants a multiple of."""
GRAPH_SIZES = [1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024]
"""Tokens of a step that graphs are captured for: a gap, its seams and a question are a few hundred. `balanced` computes
768 tokens of a document afresh."""


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    about_model = "folder with a config.json, and with weights where they are real"
    parser.add_argument("model", type=checked.model_folder, help=about_model)
    parser.add_argument("--real-weights", action="store_true", help="load them; else they are dummies")
    parser.add_argument("--cpu", action="store_true", help="vLLM's build for CPUs: little memory, donors on the host")
    parser.add_argument("--context", type=checked.positive, default=32768, help="max_model_len")
    parser.add_argument("--tier", default="fast", choices=("fast", "balanced", "strict"))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-cache-dtype", default="auto", help="such as fp8_e4m3")
    parser.add_argument("--memory", type=checked.from_0_to_1, default=0.5, help="share of the GPU that vLLM takes")
    parser.add_argument(
        "--kv-tokens", type=checked.positive, help="size of the KV cache; default: what --memory leaves"
    )
    parser.add_argument("--device-bytes", default="24GiB", help="donors in GPU memory; 0: none")
    parser.add_argument("--host-bytes", default="0", help="donors in pinned memory")
    parser.add_argument(
        "--recompute-limit", type=checked.from_0_to_1, help="most of the reused tokens that the tier may compute"
    )
    parser.add_argument("--graphs", action="store_true", help="with torch.compile and CUDA graphs")
    parser.add_argument("--sync", action="store_true", help="without asynchronous scheduling")
    parser.add_argument("--stock", action="store_true", help="vLLM without SemBlend")
    parser.add_argument("--batch", type=checked.positive, default=32768, help="max_num_batched_tokens")
    parser.add_argument("--sequences", type=checked.positive, default=64, help="max_num_seqs")
    parser.add_argument("--json", type=checked.file_to_write, help="write the results here too")


def engine_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """What vLLM is started with."""
    # Costs are learned from nothing, unless somebody names a folder of learned ones.
    os.environ.setdefault("SEMBLEND_COST_DIR", "none")
    os.environ.setdefault("SEMBLEND_CACHED_TOKENS", "exact")
    if options.cpu:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        # By itself vLLM sets one more core aside where there is a connector, or none if so few are left: either way a
        # stock engine would compute with other cores.
        os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "1")
        os.environ.setdefault("SEMBLEND_LOOKUP_BUDGET_MS", "1000")  # A busy machine is no reason to decline.
    block = CPU_BLOCK if options.cpu else BLOCK
    return {
        "model": str(options.model),
        "load_format": "auto" if options.real_weights else "dummy",
        "skip_tokenizer_init": True,
        "dtype": options.dtype,
        "kv_cache_dtype": options.kv_cache_dtype,
        "max_model_len": options.context,
        "gpu_memory_utilization": options.memory,
        "enforce_eager": not options.graphs,
        "enable_prefix_caching": True,
        "max_num_batched_tokens": options.batch,
        "max_num_seqs": options.sequences,
        "block_size": block,
        **({"num_gpu_blocks_override": options.kv_tokens // block} if options.kv_tokens else {}),
        **({"async_scheduling": False} if options.sync else {}),
        **({"compilation_config": {"cudagraph_capture_sizes": GRAPH_SIZES}} if options.graphs else {}),
        **({} if options.stock else _with_semblend(options)),
    }


def _with_semblend(options: argparse.Namespace) -> dict[str, Any]:
    from vllm.config import KVTransferConfig

    device_bytes, host_bytes = options.device_bytes, options.host_bytes
    if options.cpu:
        device_bytes, host_bytes = "0", os.environ.get("SEMBLEND_STORE_HOST_BYTES", "2GiB")
    extra = {"quality_tier": options.tier, "store_device_bytes": device_bytes, "store_host_bytes": host_bytes}
    if options.recompute_limit is not None:
        extra["recompute_limit"] = options.recompute_limit
    return {
        "scheduler_cls": "semblend_vllm.SemBlendScheduler",
        "kv_transfer_config": KVTransferConfig(
            kv_connector="SemBlendConnectorV1",
            kv_connector_module_path="semblend_vllm",
            kv_role="kv_both",
            kv_connector_extra_config=extra,
        ),
    }


class Engine:
    """Answers what the shared benchmarks ask of an engine, and what those of this folder do."""

    def __init__(self, options: argparse.Namespace) -> None:
        arguments = engine_arguments(options)
        from vllm import LLM

        self.llm = LLM(**arguments)
        core = self.llm.llm_engine.engine_core.engine_core
        connector = core.scheduler.connector
        self.side = None if connector is None else connector.scheduler_side
        self._pool, self.block_tokens = core.scheduler.kv_cache_manager.block_pool, core.scheduler.block_size
        self._served = self._most_blocks = 0
        self._outcomes: dict[str, Outcome] = {}
        self._self_test = SelfTestResult(SelfTestState.PENDING)
        if self.side is not None:
            self._listen_to(self.side.provider)
        # As vLLM's own engine process does after its start: what lives for ever need not be looked at again.
        gc.collect()
        gc.freeze()

    def first_token_ms(self, tokens: list[int], salt: str, wish: Any = "on") -> tuple[float, int]:
        """Milliseconds, and the tokens that vLLM did not compute. ``wish``: what the request says to SemBlend."""
        prompt = {"prompt_token_ids": tokens, "cache_salt": salt}
        gc.collect()
        started = time.perf_counter()
        output = self.llm.generate([prompt], asking(1, wish), use_tqdm=False)[0]
        return (time.perf_counter() - started) * 1e3, output.num_cached_tokens or 0

    def serve(self, prompts: list[list[int]], salt: str, output_tokens: int, in_flight: int, wish: Any = "on") -> None:
        """As a client with ``in_flight`` requests at a time: the next is sent when one is answered."""
        engine, waiting, running = self.llm.llm_engine, list(reversed(prompts)), 0
        sampling = asking(output_tokens, wish)
        while waiting or running:
            while waiting and running < in_flight:
                self._served += 1
                prompt = {"prompt_token_ids": waiting.pop(), "cache_salt": salt}
                engine.add_request(f"bench-{self._served}", prompt, sampling)
                running += 1
            running -= sum(output.finished for output in engine.step())

    # --- What the shared benchmarks ask --------------------------------------------------------------------------

    @property
    def name(self) -> str:
        from vllm import __version__

        return f"vLLM {__version__}"

    @property
    def kv_tokens(self) -> int:
        return len(self._pool.blocks) * self.block_tokens

    def ask(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        salt: str | Sequence[str],
        reuse: bool = True,
        output_tokens: int = 1,
        top: int = 0,
    ) -> list[Answer]:
        """``salt``: of all, or one for each."""
        engine, sampling = self.llm.llm_engine, asking(output_tokens, "on" if reuse else "off", top)
        begun, first, done = {}, {}, {}
        gc.collect()
        for prompt, each in zip(prompts, [salt] * len(prompts) if isinstance(salt, str) else salt, strict=True):
            self._served += 1
            begun[f"bench{self._served}"] = time.perf_counter()
            asked = {"prompt_token_ids": list(prompt), "cache_salt": each}
            engine.add_request(f"bench{self._served}", asked, sampling)
        while len(done) < len(begun):
            for output in engine.step():
                if output.outputs[0].token_ids:
                    first.setdefault(output.request_id, time.perf_counter())
                if output.finished:
                    done[output.request_id] = output
            self._most_blocks = max(self._most_blocks, len(self._pool.blocks) - self._pool.get_num_free_blocks() - 1)
        return [_answer(done[name], (first[name] - begun[name]) * 1e3) for name in begun]

    def outcomes(self, answers: Sequence[Answer]) -> Counter[str]:
        ended = (self._outcomes.get(answer.request_id) for answer in answers)
        return Counter("none" if one is None else str(one.reason or one.kind) for one in ended)

    def confirmed_tokens(self) -> int:
        return 0 if self.side is None else int(self.side.provider.stats().confirmed_tokens)

    def self_test(self) -> tuple[str, str]:
        return str(self._self_test.state), self._self_test.says

    def probes(self) -> Counter[str]:
        """What became of the steps that looked where a question looks."""
        return Counter() if self.side is None else Counter(self.side.provider.stats().probes)

    def most_kv_tokens(self) -> int:
        most, self._most_blocks = self._most_blocks, 0
        return most * self.block_tokens

    def held(self) -> endurance.Held:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        blocks = sum(block.ref_cnt > 0 for block in self._pool.blocks if not block.is_null)
        if self.side is None:
            return endurance.Held(blocks * self.block_tokens, 0, 0, Counter())
        worker = get_kv_transfer_group().worker_side
        self.side.check_integrity()
        worker.check_integrity()
        pinned = self.side.provider.stats().pinned_requests
        books = held_by(self.side, worker)
        return endurance.Held(blocks * self.block_tokens, pinned, len(self.side.requests), books)

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()

    def _listen_to(self, provider: Any) -> None:
        report, note = provider.report_outcome, provider.note_self_test

        def reported(outcome: Outcome) -> None:
            self._outcomes[outcome.request_id.split("-")[0]] = outcome  # vLLM adds to the ids of requests.
            report(outcome)

        def noted(result: SelfTestResult) -> None:
            self._self_test = result
            note(result)

        provider.report_outcome, provider.note_self_test = reported, noted

    # -------------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let captures become donors."""
        if self.side is None:
            return
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        get_kv_transfer_group().worker_side.flush()
        self.side.catch_up()


def asking(output_tokens: int, wish: Any, top: int = 0) -> Any:
    """``wish``: what the request says to SemBlend. None: nothing, since a stock vLLM complains of it."""
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0,
        max_tokens=output_tokens,
        logprobs=top or None,
        ignore_eos=True,
        detokenize=False,
        extra_args=None if wish is None else {"kv_transfer_params": {"semblend": wish}},
    )


def _answer(output: Any, first_token_ms: float) -> Answer:
    done = output.outputs[0]
    return Answer(
        output.request_id,
        len(output.prompt_token_ids),
        output.num_cached_tokens or 0,
        first_token_ms,
        tuple(done.token_ids),
        tuple({token: entry.logprob for token, entry in step.items()} for step in done.logprobs or ()),
    )
