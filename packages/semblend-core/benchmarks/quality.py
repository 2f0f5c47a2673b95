"""How good are answers with reuse, for which share of recomputed tokens? Policies side by side, against cold prefill.

Every policy sees the same cases in the same process; each probe is charged to its budget. See docs/quality.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from lookup_data.documents import default_folder
from quality_data.cases import MAIN_TRANSFORMS, TRANSFORMS
from quality_data.design import RIVALS, Extent, equal_budget
from quality_data.report import write_report
from quality_data.summary import ratio_of_means, summarise
from quality_data.ttft import DOCUMENT_TOKENS, measure_ttft
from quality_data.work import Record, Texts, run_all

from semblend_core.reference import ReferenceEngine

FULL = Extent(
    cases=50, policy_cases=14, curve_cases=5, continuation_tokens=128, prompt_tokens=1300, transforms=TRANSFORMS
)
QUICK = Extent(
    cases=4, policy_cases=1, curve_cases=0, continuation_tokens=64, prompt_tokens=1300, transforms=MAIN_TRANSFORMS
)
_NO_POLICIES = ("rotate_only@", "fast@", "balanced@", "full_recompute@")


def main() -> None:
    options = parse_options()
    extent = QUICK if options.quick else FULL
    started = time.perf_counter()
    records = collect(options, extent)
    figures = figures_of(records)
    say(f"timing {DOCUMENT_TOKENS} tokens behind a new instruction")
    figures |= measure_ttft(ReferenceEngine.load(device=options.device), Texts(options.data, DOCUMENT_TOKENS))
    figures["run"] = {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name()
        if options.device != "cpu"
        else f"cpu, {torch.get_num_threads()} threads",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cases": extent.cases,
        "seconds": round(time.perf_counter() - started),
    }
    if options.report:
        write_report(figures, options.report)
    print_table(figures)
    print(json.dumps(figures))


def collect(options: argparse.Namespace, extent: Extent) -> list[Record]:
    """All records; those that an earlier, interrupted run left in ``--records`` are not computed again."""
    file: Path | None = options.records
    records = [json.loads(line) for line in file.read_text().splitlines()] if file and file.exists() else []
    if any(record["extent"] != _sizes(extent) for record in records):
        raise SystemExit(f"--records {file}: holds cases of another size, such as a quick study's; name another file")
    known = {(record["transform"], record["number"]) for record in records}
    for record in run_all(options.data, extent, options.device, options.workers, say, known):
        record["extent"] = _sizes(extent)
        records.append(record)
        if file:
            with file.open("a") as lines:
                lines.write(json.dumps(record) + "\n")
    return records


def _sizes(extent: Extent) -> list[int]:
    return [extent.prompt_tokens, extent.continuation_tokens]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few cases, one budget: some minutes on two cores")
    parser.add_argument("--data", type=Path, default=default_folder(), help="folder with QMSum, SQuAD and *.rst papers")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="processes; several pay on a GPU only")
    parser.add_argument("--records", type=Path, help="append each case's record to this file, and go on from it")
    parser.add_argument("--report", type=Path, help="also write plots, tables and the raw figures into this folder")
    options = parser.parse_args()
    if options.data is None or not options.data.is_dir():
        parser.error("--data: no folder with text; name one that has QMSum's *.jsonl, SQuAD's *.json and *.rst papers")
    if options.workers < 1:
        parser.error(f"--workers must be at least 1, got {options.workers}")
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: torch sees no CUDA device here; use --device cpu")
    return options


def figures_of(records: list[Record]) -> dict[str, Any]:
    """Everything the study says, from the records of its cases."""
    by_transform: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda each: each["number"]):
        by_transform[record["transform"]].append(record)
    figures: dict[str, Any] = {"curves": {}, "equal_budget": {}, "against": {}, "declined": {}}
    for transform, cases in by_transform.items():
        reusable = [case for case in cases if case["trials"]]
        figures["declined"][transform] = len(cases) - len(reusable)
        for label in ("rotate_only", "fast", "balanced", "full_recompute"):
            having = [case for case in reusable if _tier_key(label) in case["trials"]]
            if having:
                figures.setdefault(label, {})[transform] = _cell(having, _tier_key(label))
        _compare_policies(figures, transform, reusable)
    figures |= _floors(records)
    errors = [record["full_recompute_max_abs"] for record in records if "full_recompute_max_abs" in record]
    figures["full_recompute_max_abs"] = max(errors, default=None)
    return figures


def _compare_policies(figures: dict[str, Any], transform: str, cases: list[Record]) -> None:
    """Policies against each other, each table and curve over the cases that all of its cells have."""
    keys = {key for case in cases for key in case["trials"] if not key.startswith(_NO_POLICIES)}
    equal = {key for key in keys if float(key.rsplit("@", 1)[1]) == equal_budget(transform)}
    compared = [case for case in cases if equal <= set(case["trials"])]
    if not equal or not compared:
        return
    for key in sorted(equal):
        figures.setdefault(key.rsplit("@", 1)[0], {})[transform] = _cell(compared, key)
    figures["equal_budget"][transform] = {
        "n": len(compared),
        "balanced": _cell(compared, "balanced@tier"),
        "rotate_only": _cell(compared, "rotate_only@0"),
    }
    figures["against"][transform] = {rival: _against(compared, name, transform) for rival, name in RIVALS.items()}
    drawn = [case for case in cases if keys <= set(case["trials"])]
    for key in sorted(keys, key=lambda key: float(key.rsplit("@", 1)[1])):
        label, budget = key.rsplit("@", 1)
        figures["curves"].setdefault(transform, {}).setdefault(label, {})[budget] = _cell(drawn or compared, key)


def _tier_key(label: str) -> str:
    return {"rotate_only": "rotate_only@0", "full_recompute": "full_recompute@1"}.get(label, f"{label}@tier")


def _cell(cases: list[Record], key: str) -> dict[str, Any]:
    having = [case["trials"] for case in cases]
    return summarise([trials[key] for trials in having], [trials["rotate_only@0"] for trials in having])


def _against(cases: list[Record], name: str, transform: str) -> dict[str, float]:
    """Mean KL of the balanced tier by that of another policy at equal budget."""
    key = f"{name}@{equal_budget(transform):g}"
    ours = [case["trials"]["balanced@tier"]["kl"] for case in cases]
    ratio, low, high = ratio_of_means(ours, [case["trials"][key]["kl"] for case in cases])
    return {"kl_ratio": ratio, "low": low, "high": high}


def _floors(records: list[Record]) -> dict[str, Any]:
    floors: dict[str, Any] = {}
    for name in ("floor", "fp8_floor"):
        having = [record[name] for record in records if name in record]
        if having:
            floors[name] = {key: sum(each[key] for each in having) / len(having) for key in having[0]}
    by_layer: dict[str, list[list[float]]] = defaultdict(list)
    for record in records:
        if "layer_deviation" in record:
            by_layer[record["transform"]].append(record["layer_deviation"])
    floors["layer_deviation"] = {
        transform: [round(sum(layer) / len(layer), 5) for layer in zip(*each, strict=True)]
        for transform, each in by_layer.items()
    }
    return floors


def print_table(figures: dict[str, Any]) -> None:
    print(f"{'':34}{'transform':26}{'n':>4}{'KL':>10}{'cut':>7}{'PPL':>8}{'top-1':>8}{'share':>8}{'TTFT':>7}")
    for label in ("rotate_only", "fast", "balanced", "seam_head", "kv_deviation", "query_attention"):
        for transform, cell in figures.get(label, {}).items():
            cut = f"{cell['kl_cut']:.0%}"
            ttft = "" if cell["ttft_ratio"] is None else f"{cell['ttft_ratio']:.1f}x"
            print(
                f"{label:34}{transform:26}{cell['n']:>4}{cell['kl']:>10.5f}{cut:>7}{cell['ppl_ratio']:>8.4f}"
                f"{cell['top1']:>8.4f}{cell['recompute']:>8.3f}{ttft:>7}"
            )
    if figures["full_recompute_max_abs"] is not None:
        print(f"full recompute against cold, largest logit difference: {figures['full_recompute_max_abs']:.1e}")
    print(f"TTFT of {DOCUMENT_TOKENS} tokens behind a new instruction: {figures['ttft_ratio_4k']:.1f}x of cold")


def say(message: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {message}", flush=True)


if __name__ == "__main__":
    main()
