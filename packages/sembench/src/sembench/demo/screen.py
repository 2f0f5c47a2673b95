"""The demo's one screen: the table, some answers side by side, and what the figures mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from sembench.demo.items import LABELS
from sembench.embedded.table import console_for_tables, lines_of, replay_table
from sembench.schema import ManifestItem, RequestRecord, Result
from sembench.schema.result import Arm

_ANSWERS_OF = ("instruction_variant", "rag_reorder", "multi_donor_composite")


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
    return label if first is item else f"{label}, long"


def _opening(result: Result) -> str:
    engine = result.run.engine
    threads = f", {engine['threads']} threads" if engine.get("threads") else ""
    return (
        f"{engine['model']} ({engine['dtype']}, {result.run.host['device']}{threads}): each prompt is served cold, "
        "from its own KV (exact),\nand behind earlier prompts whose KV may be reused (reuse)."
    )


def _answers(result: Result, items: Sequence[ManifestItem]) -> Table:
    said = {(record.item_id, record.arm): record for record in result.requests}
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for heading, width in (("question", 36), ("in the document", 17), ("cold", 22), ("with reuse", 22)):
        table.add_column(heading, width=width)
    shown = [item for item in items if item.transform in _ANSWERS_OF]
    for item in shown[: len(_ANSWERS_OF)]:
        arms: tuple[Arm, ...] = ("cold", "warm")
        answers = [_one_line(said.get((item.item_id, arm))) for arm in arms]
        table.add_row(item.input, " / ".join(item.answers), *answers)
    return table


def _one_line(record: RequestRecord | None) -> str:
    return "-" if record is None or record.output is None else " ".join(record.output.split())


def _findings(result: Result) -> str:
    """What the table comes to, each figure with what it was made of."""
    aggregate, paired = result.aggregate, result.paired
    assert paired is not None
    told = []
    hits, rate = paired.hit_ttft_speedup_median, paired.hit_rate
    if hits and hits.value and rate and rate.denominator:
        told.append(
            f"First token {hits.value:.1f}x sooner in the median where KV was reused ({rate.numerator:.0f} of "
            f"{rate.denominator:.0f} prompts that are no controls)"
        )
    floor = (paired.noise_floor or {}).get("kl_mean")
    if aggregate.kl_mean is not None and floor is not None:
        told.append(f"two cold prefills differ by a KL of {floor:.0e} here, KV stored as fp8 by about 0.002")
    confirmed = aggregate.negative_control_backend_confirmed_rate
    if confirmed and confirmed.numerator is not None:
        told.append(f"blocks reused for the control: {confirmed.numerator:.0f} of {confirmed.denominator:.0f}")
    return (
        "; ".join(told) + ".\n"
        "exact is the floor: the same prompt from the engine's own cache. reuse holds everything: lookup, moving KV,\n"
        "computing what the quality tier asks for, the first token. KL is in nats, over the cold model's own text."
    )
