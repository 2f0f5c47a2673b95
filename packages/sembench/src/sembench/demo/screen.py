"""The demo's one screen: the table, some answers side by side, and what the figures mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

from rich.box import SIMPLE_HEAD
from rich.table import Table

from sembench.demo.items import LABELS
from sembench.embedded.table import console_for_tables, lines_of, replay_table
from sembench.schema import ManifestItem, Paired, RequestRecord, Result
from sembench.schema.result import Arm

_ANSWERS_OF = ("instruction_variant", "rag_reorder", "multi_donor_composite", "entity_swap_control")
_ANSWER_WIDTH = 26
_ANSWER_COLUMNS = {"question": 32, "in the text": 13, "cold": _ANSWER_WIDTH, "with reuse": _ANSWER_WIDTH}


def show(result: Result, items: Sequence[ManifestItem], report: Path) -> None:
    console = console_for_tables()
    console.print(_opening(result), highlight=False)
    labels = {item.item_id: _label(item, items) for item in items}
    lines = lines_of(result, lambda record: labels[record.item_id])
    console.print(replay_table(lines, "\nwhat changed"))
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
