"""A real vLLM in this process, stock or with SemBlend, and prompts that share nothing but what is meant."""

from __future__ import annotations

import argparse
import gc
import os
import random
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
INSTRUCTION, QUESTION, HEADER = 61, 64, 16
PASSAGES = 4
GRAPH_SIZES = [1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512]
"""Tokens of a step that graphs are captured for: a gap, its seams and a question are a few hundred."""


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=Path, help="folder with a config.json; weights are dummies, times do not need them"
    )
    parser.add_argument("--tier", default="fast", choices=("fast", "balanced", "strict"))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--memory", type=float, default=0.5, help="share of the GPU that vLLM takes")
    parser.add_argument("--device-bytes", default="24GiB", help="donors in GPU memory; 0: none")
    parser.add_argument("--host-bytes", default="0", help="donors in pinned memory")
    parser.add_argument("--recompute-limit", type=float, help="most of the reused tokens that the tier may compute")
    parser.add_argument("--graphs", action="store_true", help="with torch.compile and CUDA graphs")
    parser.add_argument("--sync", action="store_true", help="without asynchronous scheduling")
    parser.add_argument("--stock", action="store_true", help="vLLM without SemBlend")
    parser.add_argument("--batch", type=int, default=32768, help="max_num_batched_tokens")
    parser.add_argument("--sequences", type=int, default=64, help="max_num_seqs")
    parser.add_argument("--json", type=Path, help="write the results here too")


class Engine:
    def __init__(self, options: argparse.Namespace) -> None:
        from vllm import LLM, SamplingParams
        from vllm.config import KVTransferConfig

        self._sampling = SamplingParams
        reuse: dict[str, Any] = {}
        if not options.stock:
            extra = {
                "quality_tier": options.tier,
                "store_device_bytes": options.device_bytes,
                "store_host_bytes": options.host_bytes,
            }
            if options.recompute_limit is not None:
                extra["recompute_limit"] = options.recompute_limit
            reuse = {
                "scheduler_cls": "semblend_vllm.SemBlendScheduler",
                "kv_transfer_config": KVTransferConfig(
                    kv_connector="SemBlendConnectorV1",
                    kv_connector_module_path="semblend_vllm",
                    kv_role="kv_both",
                    kv_connector_extra_config=extra,
                ),
            }
        self.llm = LLM(
            model=str(options.model),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype=options.dtype,
            max_model_len=32768,
            gpu_memory_utilization=options.memory,
            enforce_eager=not options.graphs,
            enable_prefix_caching=True,
            max_num_batched_tokens=options.batch,
            max_num_seqs=options.sequences,
            **({"async_scheduling": False} if options.sync else {}),
            **({"compilation_config": {"cudagraph_capture_sizes": GRAPH_SIZES}} if options.graphs else {}),
            **reuse,
        )
        core = self.llm.llm_engine.engine_core.engine_core
        connector = core.scheduler.connector
        self.side = None if connector is None else connector.scheduler_side
        self._served = 0
        # As vLLM's own engine process does after its start: what lives for ever need not be looked at again.
        gc.collect()
        gc.freeze()

    def first_token_ms(self, tokens: list[int], salt: str, wish: Any = "on") -> tuple[float, int]:
        """Milliseconds, and the tokens that vLLM did not compute. ``wish``: what the request says to SemBlend."""
        prompt = {"prompt_token_ids": tokens, "cache_salt": salt}
        gc.collect()
        started = time.perf_counter()
        output = self.llm.generate([prompt], self._asking(1, wish), use_tqdm=False)[0]
        return (time.perf_counter() - started) * 1e3, output.num_cached_tokens or 0

    def serve(self, prompts: list[list[int]], salt: str, output_tokens: int, in_flight: int, wish: Any = "on") -> None:
        """As a client with ``in_flight`` requests at a time: the next is sent when one is answered."""
        engine, waiting, running = self.llm.llm_engine, list(reversed(prompts)), 0
        sampling = self._asking(output_tokens, wish)
        while waiting or running:
            while waiting and running < in_flight:
                self._served += 1
                prompt = {"prompt_token_ids": waiting.pop(), "cache_salt": salt}
                engine.add_request(f"bench-{self._served}", prompt, sampling)
                running += 1
            running -= sum(output.finished for output in engine.step())

    def _asking(self, output_tokens: int, wish: Any) -> Any:
        return self._sampling(
            temperature=0,
            max_tokens=output_tokens,
            ignore_eos=True,
            detokenize=False,
            extra_args={"kv_transfer_params": {"semblend": wish}},
        )

    def settle(self) -> None:
        """Let captures become donors."""
        if self.side is None:
            return
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        get_kv_transfer_group().worker_side.flush()
        self.side.catch_up()


class Prompts:
    """Random ids: no two prompts share anything but what is meant."""

    def __init__(self, seed: int = 7) -> None:
        self._source = random.Random(seed)

    def fresh(self, tokens: int) -> list[int]:
        return [self._source.randrange(1000, 150_000) for _ in range(tokens)]

    def new_instruction(self, size: int) -> tuple[list[list[int]], list[int]]:
        document = self.fresh(size - INSTRUCTION - QUESTION)
        donor = self.fresh(48) + document + self.fresh(QUESTION)
        return [donor], self.fresh(INSTRUCTION) + document + self.fresh(QUESTION)

    def reorder(self, size: int) -> tuple[list[list[int]], list[int]]:
        passages = [self.fresh((size - QUESTION) // PASSAGES - HEADER) for _ in range(PASSAGES)]
        donor = self.fresh(48) + [token for passage in passages for token in passage] + self.fresh(QUESTION)
        return [donor], self._composed([passages[i] for i in (2, 0, 3, 1)])

    def composite(self, size: int) -> tuple[list[list[int]], list[int]]:
        passages = [self.fresh((size - QUESTION) // PASSAGES - HEADER) for _ in range(PASSAGES)]
        donors = [self.fresh(48) + passage + self.fresh(QUESTION) for passage in passages]
        return donors, self._composed(passages)

    def _composed(self, passages: list[list[int]]) -> list[int]:
        return [token for passage in passages for token in self.fresh(HEADER) + passage] + self.fresh(QUESTION)
