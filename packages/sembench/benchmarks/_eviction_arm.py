"""One arm of eviction_on_vllm: a vLLM in a process of its own that serves the prompts of a file one after the other.

Its last line is one JSON object: what the audit stream confirmed, and what went.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("SEMBLEND_LOOKUP_BUDGET_MS", "1000")  # A busy machine is no reason to decline.
os.environ.setdefault("SEMBLEND_COST_DIR", "none")

from semblend_core import read_audit

CPU_BLOCK = 32
"""What vLLM's attention on CPU wants a multiple of."""
WARM_UP = "warm-up"
MOST_WARM_UPS = 12


class Arm:
    def __init__(self, order: dict[str, Any], audit: Path) -> None:
        from vllm import LLM, SamplingParams
        from vllm.config import KVTransferConfig

        settings = {
            "audit_path": str(audit),
            "cost_gate": "0",  # Which donors are kept is to be measured, not what pays on this machine today.
            "eviction": order["policy"],
            "exact_after": "never",
            "quality_share": "0",
            "quality_tier": order["tier"],
            "store_host_bytes": str(order["store_bytes"]),
        }
        self._sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
        self._llm = LLM(
            model=order["model"],
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            block_size=CPU_BLOCK,
            enable_prefix_caching=True,
            max_model_len=order["longest"],
            max_num_batched_tokens=order["longest"],
            max_num_seqs=16,
            num_gpu_blocks_override=order["engine_tokens"] // CPU_BLOCK,
            scheduler_cls="semblend_vllm.SemBlendScheduler",
            kv_transfer_config=KVTransferConfig(
                kv_connector="SemBlendConnectorV1",
                kv_connector_module_path="semblend_vllm",
                kv_role="kv_both",
                kv_connector_extra_config=settings,
            ),
        )
        self._scheduler = self._llm.llm_engine.engine_core.engine_core.scheduler
        self._side = self._scheduler.connector.scheduler_side
        self._served = 0

    def warm_up(self, prompts: list[list[int]]) -> None:
        """Until the self-test has seen enough, and then as if nothing had been."""
        for prompt in prompts[:MOST_WARM_UPS]:
            self.serve(prompt, WARM_UP)
            if self._side.self_test.passed:
                break
        else:
            raise SystemExit(f"the self-test did not pass: {self._side.self_test.why_not}")
        self._side.purge(WARM_UP)
        self._served = 0

    def serve(self, prompt: list[int], salt: str) -> None:
        """Until its KV is kept."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self._served += 1
        name = f"{salt}-{self._served:05d}"
        engine = self._llm.llm_engine
        engine.add_request(name, {"prompt_token_ids": prompt, "cache_salt": salt}, self._sampling)
        while engine.has_unfinished_requests():
            engine.step()
        get_kv_transfer_group().worker_side.flush()
        self._side.catch_up()

    @property
    def donors(self) -> int:
        return len(self._side.keeper.donors)

    def close(self) -> None:
        self._side.close()


def figures(audit: Path, salt: str, prompts: list[list[int]]) -> dict[str, Any]:
    confirmed = reusing = captured = regrets = 0
    gone: Counter[str] = Counter()
    declined: Counter[str] = Counter()
    stream = read_audit(audit)
    if stream.torn:
        raise SystemExit(f"the audit stream is torn: {stream.torn[0]}")
    for record in stream.records:
        event, ours = record["event"], str(record.get("request_id")).startswith(salt)
        if event == "materialized" and ours:
            confirmed += record["tokens"]
            reusing += 1
        elif event == "donor_captured" and ours:
            captured += 1
        elif event == "evicted":
            gone[str(record["cause"])] += 1
        elif event == "regretted":
            regrets += 1
        elif event == "declined" and (ours or record["stage"] in ("offer", "capture")):
            declined[f"{record['stage']}: {record['reason']}"] += 1
    tokens = sum(map(len, prompts))
    return {
        "prompt_tokens": tokens,
        "confirmed_tokens": confirmed,
        "reuse_rate": confirmed / tokens,
        "reusing_requests": reusing,
        "captured": captured,
        "gone": dict(gone),
        "regrets": regrets,
        "declined": dict(declined),
    }


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    audit = Path(sys.argv[1]).with_suffix(".audit.jsonl")
    arm = Arm(order, audit)
    arm.warm_up(order["warm_up"])
    began = time.perf_counter()
    for prompt in order["prompts"]:
        arm.serve(prompt, order["salt"])
    seconds, donors = time.perf_counter() - began, arm.donors
    arm.close()
    found = figures(audit, order["salt"], order["prompts"])
    print(json.dumps({**found, "donors_at_the_end": donors, "seconds": round(seconds, 1)}), flush=True)
    os._exit(0)  # vLLM's own threads may take long to end, and nothing is left to be done.


if __name__ == "__main__":
    main()
