"""Eviction policies in a real vLLM: how much of the workloads' prompts each policy's donors serve, as vLLM confirms it.

    python benchmarks/eviction_on_vllm.py                          # needs vLLM and semblend-vllm
    python benchmarks/eviction_on_vllm.py --policies lru arc cost_aware --workloads low_memory_rag_stress

The laboratory's workloads, scaled down, one request after the other on vLLM's build for CPUs with the first layers of
SmolLM2. Donors have a share of the working set: of the KV of all different text of the workload. The engine's own
cache has room for a few prompts, so that most reuse is of donors. An arm without a limit shows the most there is. The
last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from sembench.laboratory.requests import CacheRequest
from sembench.laboratory.summary import markdown_table
from sembench.laboratory.trace_facts import different_blocks
from sembench.laboratory.workloads import WORKLOADS, generate
from semblend_core.eviction import POLICY_NAMES

PUBLISHED = (
    "low_memory_rag_stress",
    "shared_system_prompt_high_reuse",
    "tool_agent_session_reuse",
    "legal_review_long_context",
    "workload_shift_static_vs_adaptive",
)
UNLIMITED = "unlimited"
VOCABULARY = range(1000, 3000)
"""Few, as in any text: the self-test looks at words that stand at several places."""
LONGEST_ARM_S = 1800


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(PUBLISHED), choices=list(WORKLOADS))
    arms = [*POLICY_NAMES, UNLIMITED]
    parser.add_argument("--policies", nargs="+", default=["lru", "priced_lru", UNLIMITED], choices=arms)
    parser.add_argument("--share", type=float, default=0.25, help="of the working set that donors may take (0.25)")
    parser.add_argument("--requests", type=int, default=240, help="of each workload (default 240)")
    parser.add_argument("--scale", type=int, default=8, help="prompts are so many times shorter (default 8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine-prompts", type=int, default=3, help="longest prompts that vLLM itself holds (3)")
    parser.add_argument("--layers", type=int, default=2, help="of SmolLM2 (default 2)")
    parser.add_argument("--tier", default="fast", choices=("fast", "balanced", "strict"))
    parser.add_argument("--quick", action="store_true", help="24 requests of one workload: does it work")
    options = parser.parse_args()
    if options.quick:
        options.requests, options.workloads = 24, options.workloads[:1]
    from semblend_core.testing import shallow_model_folder

    model = shallow_model_folder(options.layers)
    results = {workload: study(workload, model, options) for workload in options.workloads}
    rows = [
        [workload, *(f"{found[arm]['reuse_rate']:.3f}" for arm in options.policies)]
        for workload, found in results.items()
    ]
    head = [f"confirmed reuse, {options.share:.0%} of the working set", *options.policies]
    print(f"\n{markdown_table(head, rows)}\n")
    print(json.dumps({"share": options.share, "requests": options.requests, "workloads": results}))
    return 0


def study(workload: str, model: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    requests = generate(workload, options.requests, options.seed)
    prompts = [tokens_of(request, options.scale) for request in requests]
    working_set = sum(scaled(tokens, options.scale) for tokens in different_blocks(requests).values())
    whole = working_set * token_bytes(model)
    longest = -(-max(map(len, prompts)) // 256) * 256 + 256
    found: dict[str, dict[str, Any]] = {}
    for arm in options.policies:
        order = {
            "model": str(model),
            "policy": "lru" if arm == UNLIMITED else arm,
            "store_bytes": 2**31 if arm == UNLIMITED else int(options.share * whole),
            "tier": options.tier,
            "longest": longest,
            "engine_tokens": options.engine_prompts * longest,
            "salt": "bench",
            "warm_up": [random_tokens(number, 512) for number in range(12)],
            "prompts": prompts,
        }
        found[arm] = {"store_bytes": order["store_bytes"], "working_set_tokens": working_set, **run(order)}
        told = {name: found[arm][name] for name in ("captured", "gone", "regrets", "declined", "seconds")}
        print(f"{workload} {arm}: {found[arm]['reuse_rate']:.4f} {json.dumps(told)}", flush=True)
    return found


def run(order: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own: an engine cannot be made twice in one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "order.json"
        path.write_text(json.dumps(order))
        command = [sys.executable, str(Path(__file__).with_name("_eviction_arm.py")), str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LONGEST_ARM_S)
    if done.returncode:
        raise SystemExit(f"the arm {order['policy']} failed with exit code {done.returncode}: see above")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def tokens_of(request: CacheRequest, scale: int) -> list[int]:
    blocks = zip(request.keys, request.tokens, strict=True)
    return [token for key, tokens in blocks for token in random_tokens(key, scaled(tokens, scale))]


def scaled(tokens: int, scale: int) -> int:
    return max(1, round(tokens / scale))


def random_tokens(key: int, count: int) -> list[int]:
    """The same for the same block: what matters is what recurs, and not what it says."""
    draw = np.random.default_rng(key & (2**64 - 1))
    chosen: list[int] = draw.integers(VOCABULARY.start, VOCABULARY.stop, count).tolist()
    return chosen


def token_bytes(model: Path) -> int:
    config = json.loads((model / "config.json").read_text())
    heads, width = config["num_key_value_heads"], config["hidden_size"] // config["num_attention_heads"]
    return int(2 * config["num_hidden_layers"] * heads * width * np.dtype(np.float32).itemsize)


if __name__ == "__main__":
    raise SystemExit(main())
