"""The demo: a manifest on a handbook, replayed on the embedded engine, shown on one screen and in a report."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from textwrap import shorten

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sembench.embedded.config import EmbeddedConfig
from sembench.embedded.runner import run_embedded
from sembench.embedded.table import TABLE_WIDTH, build_table, group_records
from sembench.manifests import BuildOptions, build_synthetic, write_manifest
from sembench.manifests.domains import DOMAINS
from sembench.manifests.items import build_items
from sembench.manifests.source import Fact, SourceDocument
from sembench.manifests.synthetic import SyntheticWriter
from sembench.partial import partial_path
from sembench.schema import ManifestItem, Paired, RequestRecord, Result, naming
from sembench.schema.result import Arm
from sembench.terminal import table_console

LABELS = {
    "exact_repeat": "nothing: same prompt again",
    "instruction_variant": "the instruction",
    "same_evidence_new_task": "the task, put in front",
    "rag_reorder": "the order of 4 passages",
    "multi_donor_composite": "passages of 4 requests",
    "sparse_edit": "4% of the sentences",
    "entity_swap_control": "all names and figures",
    "negative_control": "everything (control)",
}
"""Transforms in the order in which they are shown, and what each changed of the prompts served before."""

_KEEPER = Fact("Who is the keeper of the lighthouse?", "Who looks after the lighthouse?", ("Marta Olsen",))
_BUILT = Fact("When was the lighthouse built?", "In which year was the lighthouse put up?", ("1887",))
_MASTER = Fact("Who is the master of the boatyard?", "Who runs the boatyard?", ("Ingrid Falk",))
_ASKED = {"instruction_variant": _MASTER, "rag_reorder": _BUILT}
"""Where it is not the keeper: answers side by side are of different questions."""
_LONG_TOKENS = 4_000
_ANSWERS_OF = ("instruction_variant", "rag_reorder", "multi_donor_composite", "entity_swap_control")
_ANSWER_WIDTH = 26
_ANSWER_COLUMNS = {"question": 32, "in the text": 13, "cold": _ANSWER_WIDTH, "with reuse": _ANSWER_WIDTH}


def build_demo_items(seed: int) -> list[ManifestItem]:
    """An item per transform on the handbook, and a long generated document behind a new instruction."""
    stranger = SyntheticWriter(seed).write(DOMAINS["log_triage"], "demo-unrelated", 1_500, with_swap=False)
    items = []
    for transform in LABELS:
        options = BuildOptions("demo", seed, (transform,))
        items += build_items([_handbook(transform)], options, lambda source: stranger).items
    return items + build_synthetic(
        seed=seed, domains=("support_tickets",), bands_tokens=(_LONG_TOKENS,), transforms=("instruction_variant",)
    )


def _handbook(transform: str) -> SourceDocument:
    text = resources.files("sembench.embedded").joinpath("harbor_handbook.txt").read_text(encoding="utf-8")
    scored = _ASKED.get(transform, _KEEPER)
    others = tuple(fact for fact in (_MASTER, _BUILT, _KEEPER) if fact is not scored)
    return SourceDocument("demo", "harbor", "harbor-handbook", "harbor handbook", text.strip(), (scored, *others))


def run_demo(output_dir: Path, seed: int, model: str | None = None) -> Result:
    """Writes manifest.jsonl, result.json and report.html into ``output_dir``, and prints the screen."""
    items = build_demo_items(seed)
    manifest, output, report = (output_dir / name for name in ("manifest.jsonl", "result.json", "report.html"))
    with naming(f"--output-dir {output_dir}"):
        write_manifest(manifest, items)
        partial_path(output).unlink(missing_ok=True)  # A demo always starts anew.
    result = run_embedded(manifest, output, demo_config(model), seed=seed, console=Console(stderr=True))
    _write_report(result, report)
    show_demo(result, items, report.resolve())
    return result


def demo_config(model: str | None) -> EmbeddedConfig:
    """Short answers, two rounds, no probes, rounding told by the exact arm: two cores must do it in a few minutes."""
    return EmbeddedConfig(
        model=model, continuation_tokens=48, max_output_tokens=24, repeats=2, probe=False, noise_floor=False
    )


def _write_report(result: Result, path: Path) -> None:
    from sembench.report import write_report

    write_report([result], path)


def show_demo(result: Result, items: Sequence[ManifestItem], report: Path) -> None:
    console = table_console(TABLE_WIDTH)
    console.print(_opening(result), highlight=False)
    labels = {item.item_id: _label(item, items) for item in items}
    lines = group_records(result, lambda record: labels[record.item_id])
    console.print(build_table(lines, "\nwhat changed"))
    console.print(_answers(result, items))
    console.print(_findings(result), highlight=False)
    console.print(f"Report: {report}", soft_wrap=True, highlight=False)


def _label(item: ManifestItem, items: Sequence[ManifestItem]) -> str:
    label = LABELS[item.transform]
    first = next(other for other in items if other.transform == item.transform)
    return label if first is item else f"{label} (long)"


def _opening(result: Result) -> str:
    engine, device = result.run.engine, result.run.host["device"]
    threads = f", {engine['threads']} threads" if engine.get("threads") else ""
    return (
        f"{Path(engine['model']).name} ({engine['dtype']}, {device}{threads}) serves each prompt three times: cold,\n"
        "from its own KV (exact), and behind earlier prompts with SemBlend (reuse)."
    )


def _answers(result: Result, items: Sequence[ManifestItem]) -> Table:
    said = {(record.item_id, record.arm): record for record in result.requests}
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for heading, width in _ANSWER_COLUMNS.items():
        table.add_column(heading, width=width)
    shown = {item.transform: item for item in reversed(items)}  # The first of each transform.
    for item in (shown[transform] for transform in _ANSWERS_OF):
        arms: tuple[Arm, ...] = ("cold", "warm")
        answers = [_beginning(said.get((item.item_id, arm))) for arm in arms]
        table.add_row(f"{LABELS[item.transform]}: {item.input}", " / ".join(item.answers), *answers)
    return table


def _beginning(record: RequestRecord | None) -> str:
    said = "" if record is None else record.output or ""
    # A model may say anything, also what would move the cursor.
    text = "".join(letter if letter.isprintable() else " " for letter in said)
    return shorten(text, 2 * _ANSWER_WIDTH - 4, placeholder=" ...") or "-"


def _findings(result: Result) -> str:
    """What the table comes to, each figure with what it was made of."""
    paired, control = result.paired, result.aggregate.negative_control_backend_confirmed_rate
    assert paired is not None
    told = [
        "cold computes all tokens; exact is the floor, the same prompt from the engine's own prefix cache.",
        "reuse is everything together: lookup, moving KV, what the quality tier computes afresh, first token.",
    ]
    told += _speed(paired)
    told.append(f"Answers that hold the fact: cold {_passed(result, 'cold')}, with reuse {_passed(result, 'warm')}.")
    exact = [record.quality.kl_mean for record in result.requests if record.arm == "exact"]
    rounding = max((kl for kl in exact if kl is not None), default=None)
    if rounding is not None:
        tokens = result.config["continuation_tokens"]
        told.append(f"KL in nats over {tokens} tokens of cold text; of exact, which is rounding only: {rounding:.0e}.")
    if control and control.numerator is not None and control.denominator is not None:
        told.append(f"Blocks reused for the control: {control.numerator:.0f} of {control.denominator:.0f}.")
    return "\n".join(told)


def _speed(paired: Paired) -> list[str]:
    """The blended figure first; hits only beside their rate."""
    told = []
    blended, hits, rate = paired.blended_ttft_speedup_median, paired.hit_ttft_speedup_median, paired.hit_rate
    if blended and blended.value:
        between = f" (95%: {blended.low:.1f} to {blended.high:.1f})" if blended.low and blended.high else ""
        told.append(f"First token {blended.value:.1f}x sooner in the median of all {blended.n} prompts{between}.")
    if hits and hits.value and rate and rate.numerator:
        told.append(f"Where KV was reused, {rate.numerator:.0f} of {rate.denominator:.0f} prompts: {hits.value:.1f}x.")
    control = paired.negative_control_ttft_speedup_median
    if control and control.value:
        told.append(f"The control, for which nothing can be reused: {control.value:.2f}x.")
    return told


def _passed(result: Result, arm: Arm) -> str:
    verdicts = [record.quality.passed for record in result.requests if record.arm == arm]
    known = [verdict for verdict in verdicts if verdict is not None]
    return f"{sum(known)} of {len(known)}"
