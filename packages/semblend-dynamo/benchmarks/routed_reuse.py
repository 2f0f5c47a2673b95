"""What placement brings: backend-confirmed reuse behind semblend-router, semantic_locality beside round_robin.

Two real vLLM servers on the CPU with semblend-vllm, behind the router directly and, with --smg, by an smg gateway. Each
run replays the same shuffled manifest with `sembench run-live-gateway`; reuse is what the engines' own audit streams
confirm. Needs the engine's environment (--engine-python) and sembench in this one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from _fleet import AuditPump, free_port, router, smg, vllm_replica, wait_for

POLICIES = ("round_robin", "semantic_locality")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="A small manifest.")
    parser.add_argument("--engine-python", default=sys.executable, help="Python of the environment that has vLLM.")
    parser.add_argument("--smg", help="The program smg, from an environment of its own.")
    parser.add_argument("--whole", action="store_true", help="All layers of the model, not its first ones.")
    parser.add_argument("--length-band", default="1k")
    parser.add_argument("--sources", type=int, default=20, help="Documents of each of three domains.")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    given = options()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        manifest = shuffled_manifest(folder, given)
        pump = AuditPump(folder / "audit.jsonl", folder / "engines.log")
        urls = start_engines(stack, pump, folder, given)
        back_ends = {"direct": {"SEMBLEND_ROUTER_REPLICAS": ",".join(urls)}}
        if given.smg:
            back_ends["smg"] = {"SEMBLEND_ROUTER_GATEWAY": stack.enter_context(smg(given.smg, urls, folder))}
        runs = [
            run(folder, manifest, back_end, settings, policy, given)
            for back_end, settings in back_ends.items()
            for policy in POLICIES
        ]
    result = {"runs": runs, "ratios": ratios(runs)}
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def shuffled_manifest(folder: Path, given: argparse.Namespace) -> Path:
    path = folder / "manifest.jsonl"
    sources = "4" if given.quick else str(given.sources)
    bands = ["--length-bands", given.length_band, "--sources-per-band", sources]
    sembench("build", "--profile", "synthetic-v1", *bands, "--output", str(path))
    lines = path.read_text().splitlines()
    random.Random(given.seed).shuffle(lines)
    # One item for each document: a document that came in several items would soon lie on both replicas, and every
    # policy would find it there.
    first: dict[tuple[str, str], str] = {}
    for line in lines:
        item = json.loads(line)
        first.setdefault((item["dataset"], item["source_id"]), line)
    path.write_text("\n".join(with_strangers(list(first.values()), given.seed)) + "\n")
    return path


def with_strangers(lines: list[str], seed: int) -> list[str]:
    """Half of the items get a donor behind their own that has nothing to do with any document.

    One donor and one recipient in turn would fall on two replicas in turn, always apart: round robin is to have its
    even chance.
    """
    items = [json.loads(line) for line in lines]
    drawn = random.Random(seed + 1).sample(range(len(items)), len(items) // 2)
    for number in drawn:
        donor = items[number]["donor_prompts"][0]
        text = " ".join(reversed(donor["text"].split()))
        items[number]["donor_prompts"].append({**donor, "donor_id": donor["donor_id"][::-1], "text": text})
    return [json.dumps(item, sort_keys=True) for item in items]


def start_engines(stack: contextlib.ExitStack, pump: AuditPump, folder: Path, given: argparse.Namespace) -> list[str]:
    from semblend_core.reference import default_model_folder
    from semblend_core.testing import shallow_model_folder

    model = str(default_model_folder() if given.whole else shallow_model_folder())
    ports = [free_port(), free_port()]
    started = [stack.enter_context(vllm_replica(given.engine_python, model, port, pump, folder)) for port in ports]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    for url, process in zip(urls, started, strict=True):
        wait_for(f"{url}/health", process, folder / "engines.log")
        print(f"up: {url}", flush=True)
    return urls


def run(
    folder: Path, manifest: Path, back_end: str, settings: dict[str, str], policy: str, given: argparse.Namespace
) -> dict[str, Any]:
    output = folder / f"{back_end}-{policy}.json"
    with router({**settings, "SEMBLEND_ROUTER_POLICY": policy}, folder) as url:
        sembench(
            *("run-live-gateway", "--manifest", str(manifest), "--output", str(output), "--gateway-url", url),
            *("--model", "smollm2", "--connector-audit", str(folder / "audit.jsonl"), "--max-output-tokens", "4"),
            *("--concurrency", str(given.concurrency), "--tenant", f"{back_end}-{policy}", "--retries", "0"),
        )
        placements = httpx.get(f"{url}/status.json", trust_env=False).json()["placements"]
    records = json.loads(output.read_text())["requests"]
    warm = [each for each in records if each["arm"] == "warm" and not each["negative_control"]]
    controls = [each for each in records if each["arm"] == "warm" and each["negative_control"]]
    figures = {
        "back_end": back_end,
        "policy": policy,
        "requests": len(warm),
        "served": sum(each["status"] == "ok" for each in warm),
        "reused_requests": sum(bool(each.get("confirmed_tokens")) for each in warm),
        "confirmed_tokens": sum(each.get("confirmed_tokens") or 0 for each in warm),
        "prompt_tokens": sum(each.get("prompt_tokens") or 0 for each in warm),
        "controls": len(controls),
        "controls_reused": sum(bool(each.get("confirmed_tokens")) for each in controls),
        "placements": placements,
        "aggregate": json.loads(output.read_text())["aggregate"],
    }
    print(json.dumps({name: value for name, value in figures.items() if name != "aggregate"}), flush=True)
    return figures


def ratios(runs: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """semantic_locality by round_robin."""
    found: dict[str, dict[str, float | None]] = {}
    for back_end in {each["back_end"] for each in runs}:
        plain, placed = (next(r for r in runs if (r["back_end"], r["policy"]) == (back_end, p)) for p in POLICIES)
        found[back_end] = {
            name: placed[name] / plain[name] if plain[name] else None
            for name in ("reused_requests", "confirmed_tokens")
        }
    return found


def sembench(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "sembench", *arguments], check=True)


if __name__ == "__main__":
    main()
