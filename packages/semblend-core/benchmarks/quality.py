"""How good are answers with reuse, for which share of recomputed tokens? Arms side by side, against cold prefill.

Every arm sees the same cases; each probe is charged to its budget. Runs on several models, lengths and arms add up:
give them one --records file, and the figures are of all that it holds. See docs/quality.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from quality_data.bars import judged
from quality_data.cases import MAIN_TRANSFORMS, TRANSFORMS
from quality_data.design import Cell, bar_cells, check_arms, grid_cells
from quality_data.figures import figures_of
from quality_data.models import ModelChoice
from quality_data.records import Record, append_record, read_records
from quality_data.report import write_report
from quality_data.ttft import DOCUMENT_TOKENS, measure_ttft
from quality_data.work import Study, open_jobs, run_all

FRESH_FROM = 24
"""Cases before this one are for choosing policies and parameters; those from it on, for showing what was chosen."""


def main() -> None:
    options = parse_options()
    model = ModelChoice(options.model, options.device, options.fitted, options.tf32)
    started = time.perf_counter()
    records = collect(options, model)
    figures = figures_of(records)
    run: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name()
        if options.device != "cpu"
        else f"cpu, {torch.get_num_threads()} threads",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "seconds": round(time.perf_counter() - started),
    }
    if options.ttft:
        say(f"timing {DOCUMENT_TOKENS} tokens behind a new instruction")
        run |= measure_ttft(Study(model, options.data, options.continuation))
    if options.report:
        write_report(figures, run, options.report)
    print_table(figures)
    print(json.dumps({"run": run, "models": figures}))


def collect(options: argparse.Namespace, model: ModelChoice) -> list[Record]:
    """All records; what an earlier run left in ``--records`` is not computed again."""
    file: Path | None = options.records
    records = read_records([file] if file else [])
    own = {
        (record["cell"], record["number"]): record
        for record in records
        if record["model"] == model.name and record["continuation_tokens"] == options.continuation
    }
    jobs = [] if options.only_report else open_jobs(cells_of(options), own)
    say(f"{model.name}: {len(jobs)} cases to measure, {len(records)} on record")
    for record in run_all(model, options.data, options.continuation, jobs, options.workers, say) if jobs else ():
        append_record(file, record)
        records.append(record)
    return read_records([file]) if file else records


def cells_of(options: argparse.Namespace) -> list[Cell]:
    first = FRESH_FROM if options.fresh else options.first_case
    if options.bars:
        cells = bar_cells(options.cases or 40, first, options.arms)
        return [cell for cell in cells if cell.transform in options.transforms]
    if options.quick:
        return grid_cells([1300], MAIN_TRANSFORMS[:4], options.cases or 4, first, 0, options.arms)
    return grid_cells(options.tokens, options.transforms, options.cases or 12, first, options.curve_cases, options.arms)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder, GGUF file or hub id (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--fitted", action="store_true", help="with the correction fitted for these weights")
    parser.add_argument("--tf32", action="store_true", help="CUDA's fast float32 products; each cell says its noise")
    parser.add_argument("--workers", type=int, default=1, help="processes; several pay on a GPU only")
    parser.add_argument("--data", type=Path, help="folder with QMSum, SQuAD and *.rst papers")
    size = parser.add_argument_group("what is measured")
    size.add_argument("--quick", action="store_true", help="four transforms of 1,300 tokens, four cases of each")
    size.add_argument("--bars", action="store_true", help="only the cells that the bars are about, 40 cases of each")
    size.add_argument("--tokens", type=_numbers, default=[1300, 6000, 16000], help="prompt lengths, with commas")
    size.add_argument("--transforms", type=_words, default=list(TRANSFORMS), help="with commas (default: all)")
    size.add_argument("--arms", type=_words, default=[], help="tiers, policies, or expressions, with ; or commas")
    size.add_argument("--cases", type=int, help="per cell (default: 12; 4 with --quick, 40 with --bars)")
    size.add_argument("--first-case", type=int, default=0)
    size.add_argument("--fresh", action="store_true", help=f"cases from {FRESH_FROM} on, which no exploration uses")
    size.add_argument("--curve-cases", type=int, default=5, help="per cell, on which budgets are varied")
    size.add_argument("--continuation", type=int, default=128, help="tokens of cold text that are forced")
    size.add_argument("--ttft", action="store_true", help="also time a document of 4,096 tokens")
    out = parser.add_argument_group("what is kept")
    out.add_argument("--records", type=Path, help="append each case's record to this file, and go on from it")
    out.add_argument("--only-report", action="store_true", help="measure nothing: figures of what --records holds")
    out.add_argument("--report", type=Path, help="also write plots, tables and the raw figures into this folder")
    options = parser.parse_args()
    if options.data is None or not options.data.is_dir():
        parser.error("--data: no folder with text; name one that has QMSum's *.jsonl, SQuAD's *.json and *.rst papers")
    if options.workers < 1:
        parser.error(f"--workers must be at least 1, got {options.workers}")
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: torch sees no CUDA device here; use --device cpu")
    if options.only_report and not options.records:
        parser.error("--only-report needs --records")
    unknown = [name for name in options.transforms if name not in TRANSFORMS]
    if unknown:
        parser.error(f"--transforms: {', '.join(unknown)} is none of {', '.join(TRANSFORMS)}")
    check_arms(options.arms)
    return options


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _words(text: str) -> list[str]:
    """Expressions have commas of their own, so a semicolon anywhere makes it the separator."""
    return [part.strip() for part in text.split(";" if ";" in text else ",")]


def print_table(figures: dict[str, Any]) -> None:
    for model, cells in figures.items():
        print(model)
        print(f"{'':28}{'':40}{'n':>4}{'KL':>10}{'cut':>7}{'PPL':>8}{'top-1':>8}{'equal':>7}{'share':>8}{'answer':>16}")
        for name, cell in cells.items():
            for key, arm in cell["arms"].items():
                cut = f"{arm['kl_cut']:.0%}" if "kl_cut" in arm else ""
                answer = f"{arm['answer']:.3f} of {arm['cold_answer']:.3f}" if "answer" in arm else ""
                print(
                    f"{name:28}{key:40}{arm['n']:>4}{arm['kl']:>10.5f}{cut:>7}{arm['ppl_ratio']:>8.4f}"
                    f"{arm['top1']:>8.4f}{arm['equal']:>7.0%}{arm['recompute']:>8.3f}{answer:>16}"
                )
            if "floor" in cell:
                print(f"{name:28}cold against cold in another shape{'':10}{cell['floor']['kl']:>10.2g}")
    for line in judged(figures):
        print(line)


def say(message: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {message}", flush=True)


if __name__ == "__main__":
    main()
