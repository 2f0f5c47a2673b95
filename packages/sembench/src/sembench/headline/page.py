"""One Markdown page about a run of the grid, in the shape of the published tables, by the rules of docs/METRICS.md."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sembench.headline import cells
from sembench.headline.figures import FAITHFUL, Part, band_of, split, ttft, whole_run
from sembench.headline.similarity import BANDS, MEASURE, similarity_band
from sembench.report.headline import summarize_result
from sembench.results.roi import Roi
from sembench.schema import ManifestItem, NoiseFloor, Rate, Result

_SHOWN_FAILURES = 20
_WIDTH = 120
_REUSE = ("Hit rate", "Exact prefix alone", "Prompt tokens reused", "Speed-up of hits", "Overall speed-up")
_ANSWERS = ("Dataset", "Passed, cold", "Passed, reuse", "ROUGE-L, cold", "ROUGE-L, reuse", "ROUGE-L, reuse to cold")


def write_page(
    result: Result, items: Sequence[ManifestItem], floor: NoiseFloor | None, skipped: Mapping[str, int]
) -> str:
    """``skipped``: what the builder could not make, and how often."""
    whole = whole_run(result, items)
    lengths = split(whole, band_of, _length)
    datasets = split(whole, lambda item: item.dataset)
    engine = result.run.engine
    title = f"# {engine.get('model', 'the model')} on {engine.get('name', 'a server')} {engine.get('version', '')}"
    parts = [
        title.rstrip(),
        summarize_result(result),
        *_identity(result),
        *_speed(lengths, result),
        *_similarity(whole),
        *_datasets(datasets),
        *_transforms(whole),
        *_break_even(whole, lengths),
        *_quality(datasets, result, floor),
        *_controls(whole, result),
        *_left_out(result, skipped),
    ]
    return "\n\n".join(map(_wrapped, parts)) + "\n"


def _wrapped(part: str) -> str:
    """Prose and lists to the width of a page. Tables and commands stay as they are."""
    if part.startswith(("|", "```", "#")):
        return part
    return "\n".join(
        textwrap.fill(
            line,
            _WIDTH,
            subsequent_indent="  " if line.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in part.splitlines()
    )


def _length(tokens: int) -> str:
    return f"{tokens // 1000}K" if tokens >= 1000 and tokens % 1000 == 0 else str(tokens)


def _identity(result: Result) -> Iterator[str]:
    run = result.run
    host = ", ".join(f"{name} {value}" for name, value in run.host.items())
    asked = {name: result.config.get(name) for name in ("template", "max_output_tokens", "concurrency", "seed")}
    yield "\n".join(
        [
            f"- Run: {run.started_at} to {run.finished_at}, sembench {run.versions.get('sembench')}, "
            f"taken up again {result.config.get('resumed', 0)} times.",
            f"- Client's host: {host}. The server: {run.engine.get('url')}, arms kept apart by "
            f"{run.engine.get('isolation')}.",
            f"- Manifest: {run.manifest_items} items, sha256 `{run.manifest_sha256}`.",
            "- Settings: " + ", ".join(f"{name} {value}" for name, value in asked.items()) + ".",
            f"- Reuse: {_confirmed_by(result)}",
        ]
    )
    yield "The server's command, as it was told, and the run's:"
    yield f"```\n{run.serve_command or '(not told: --serve-command)'}\n{shlex.join(run.command)}\n```"
    yield (
        "Times are medians of time to first token; in brackets the 95% bootstrap interval and n, the clean pairs it is "
        "of. A pair is clean if both arms succeeded and the engine itself shows the cold one to be cold. A hit is a "
        "request for which the backend confirmed that donor KV landed; for a miss it confirmed that none did. Where "
        "the engine's own prefix cache alone had a part of the prompt, it is neither, and counted apart. The overall "
        "speed-up is over all clean pairs, those too. Negative controls are in no figure but their own and the cost of "
        "a miss. A dash was not measured."
    )


def _confirmed_by(result: Result) -> str:
    served = [record for record in result.requests if record.arm == "warm" and record.status == "ok"]
    known = sum(record.confirmed_tokens is not None for record in served)
    if known:
        told = "confirmed by the backend's own audit stream, request by request."
        if known == len(served):
            return told
        return (
            f"{told} **It tells of {known} of {len(served)} requests**; of the others nothing is known, they count as "
            "no hits, and hit rates are lower bounds."
        )
    return (
        "**not confirmed.** No audit stream told what the server loaded (`--connector-audit`), so hits, misses, tokens "
        "reused and the break-even rate are not known. The speed-up holds whatever its cause; the engine's own prefix "
        "cache may be all of it."
    )


def _speed(lengths: Sequence[Part], result: Result) -> Iterator[str]:
    yield "## Time to first token by context length"
    head = ("Context", "Prompt tokens", "Cold", "Exact repeat", "Miss", "Hit", "Speed-up of hits")
    yield cells.table(
        (*head, "Speed-up, hits and misses", "Hit rate", "Exact prefix alone"),
        (
            (
                part.name,
                cells.tokens(part.prompt_tokens),
                cells.milliseconds(ttft(part.pairs, "cold")),
                cells.milliseconds(part.exact_ttft()),
                cells.milliseconds(ttft(part.misses, "warm")),
                cells.milliseconds(ttft(part.hits, "warm")),
                cells.times(part.paired.hit_ttft_speedup_median),
                cells.times(part.speedup_beyond_exact),
                cells.rate(part.paired.hit_rate),
                cells.rate(part.exact_prefix),
            )
            for part in lengths
        ),
    )
    dropped = sum((result.paired.dropped if result.paired else {}).values())
    if dropped:
        yield f"{dropped} items have no clean pair; the last section says why."


def _similarity(whole: Part) -> Iterator[str]:
    yield "## By similarity"
    yield f"Similarity is the {MEASURE}. It is no embedding's cosine, and no engine's."
    bands = split(whole, similarity_band, order=[name for _, name in BANDS])
    yield cells.table(
        ("Similarity", *_REUSE),
        ((part.name, *_reuse(part)) for part in bands if part.pairs),
    )


def _reuse(part: Part) -> tuple[str, ...]:
    paired = part.paired
    return (
        cells.rate(paired.hit_rate),
        cells.rate(part.exact_prefix),
        cells.rate(part.reused_tokens),
        cells.times(paired.hit_ttft_speedup_median),
        cells.times(paired.blended_ttft_speedup_median),
    )


def _datasets(datasets: Sequence[Part]) -> Iterator[str]:
    yield "## By dataset"
    yield cells.table(
        ("Dataset", *_REUSE),
        ((part.name, *_reuse(part)) for part in datasets),
    )
    bands = list(dict.fromkeys(band_of(item) for part in datasets for item in part.served.items))
    if len(bands) > 1:
        yield "Overall speed-up by dataset and context length:"
        yield cells.table(("Dataset", *map(_length, bands)), (_row_of_lengths(part, bands) for part in datasets))


def _row_of_lengths(part: Part, bands: Sequence[int]) -> tuple[str, ...]:
    found = {each.name: each for each in split(part, band_of, _length)}
    speeds = (found[name].paired.blended_ttft_speedup_median if name in found else None for name in map(_length, bands))
    return (part.name, *map(cells.times, speeds))


def _transforms(whole: Part) -> Iterator[str]:
    yield "## By transform"
    yield cells.table(
        ("Transform", *_REUSE),
        ((part.name, *_reuse(part)) for part in split(whole, lambda item: item.transform) if part.pairs),
    )


def _break_even(whole: Part, lengths: Sequence[Part]) -> Iterator[str]:
    yield "## Break-even hit rate"
    yield "The hit rate from which reuse saves time: what a miss costs / (what it costs + what a hit gains), of means."
    yield cells.table(
        ("Context", "A hit gains", "A miss costs", "Break-even hit rate", "Hit rate here", "Net per request"),
        (_even_row(part, part.return_on_reuse()) for part in (*lengths, whole)),
    )


def _even_row(part: Part, told: Roi | str) -> tuple[str, ...]:
    if isinstance(told, str):
        return (part.name, told, *(cells.NOT_MEASURED,) * 4)
    even = told.break_even_hit_rate
    return (
        part.name,
        cells.milliseconds(told.gain_ms),
        cells.milliseconds(told.miss_tax_ms),
        "none: hits gain nothing" if even.value is None else cells.share(even),
        cells.rate(told.hit_rate),
        cells.milliseconds(told.net_ms_per_request),
    )


def _quality(datasets: Sequence[Part], result: Result, floor: NoiseFloor | None) -> Iterator[str]:
    yield "## Quality"
    yield cells.table(
        (*_ANSWERS, "Judge, cold", "Judge, reuse", "Faithful"),
        (_quality_row(part) for part in datasets),
    )
    yield _floor_words(floor)
    judge = result.aggregate.judge
    if judge is None:
        yield "No judge was asked (`--judge-url`)."
    else:
        told = ", ".join(f"{name} {count}" for name, count in judge["pairwise"].items() if name != "n")
        yield (
            f"Judge: {judge['model']}, 1 to 5; faithful: {FAITHFUL} or more with reuse. Cold against reuse, asked in "
            f"both orders: {told} (n={judge['pairwise']['n']}). {judge['unreadable_replies']} replies were not "
            f"readable, {judge['failed']} of {judge['asked']} questions failed. An opinion, beside the figures."
        )
    yield (
        "Passed and ROUGE-L are against the accepted answers; the last ROUGE-L is of answers with reuse against the "
        "cold ones. Perplexity needs the model's own logits: `sembench run-embedded` measures it."
    )


def _quality_row(part: Part) -> tuple[str, ...]:
    scores = [part.score(arm, name) for name in ("passed", "rouge_l") for arm in ("cold", "warm")]
    judged = part.judged("warm")
    faithful = Rate.of(sum(score >= FAITHFUL for score in judged), len(judged)) if judged else None
    return (
        part.name,
        *(cells.average(*score) for score in scores),
        cells.average(*part.score("warm", "cold_rouge_l")),
        cells.average_of(part.judged("cold")),
        cells.average_of(judged),
        cells.rate(faithful),
    )


def _floor_words(floor: NoiseFloor | None) -> str:
    if floor is None or not floor.pairs:
        return "Noise floor: not measured, so a small difference between cold and reuse says nothing."
    same, rouge, ratio = floor.exact_match, floor.rouge_l, floor.ttft_ratio
    # Answers without text have no time to first token.
    times = (
        "TTFT ratios were not measured"
        if ratio.p5 is None or ratio.p95 is None
        else f"TTFT ratios from {ratio.p5:.2f} to {ratio.p95:.2f} (5th to 95th percentile)"
    )
    return (
        f"Noise floor, cold against cold: ROUGE-L {cells.average(rouge.mean, rouge.n)} on average, the same text in "
        f"{cells.rate(same)}; {times}. Differences within it are no effect of reuse."
    )


def _controls(whole: Part, result: Result) -> Iterator[str]:
    yield "## Negative controls"
    rows = (
        ("Controls for which any donor KV landed", cells.rate(whole.controls_reused)),
        ("Their blocks confirmed", cells.rate(result.aggregate.negative_control_backend_confirmed_rate)),
        ("TTFT cold / with donors, should be about 1", cells.times(whole.paired.negative_control_ttft_speedup_median)),
    )
    yield cells.table(("The donor is of another domain", "Found"), rows)


def _left_out(result: Result, skipped: Mapping[str, int]) -> Iterator[str]:
    yield "## Left out, declined and failed"
    dropped = result.paired.dropped if result.paired else {}
    lines = [f"- No clean pair: {reason.replace('_', ' ')}: {count}" for reason, count in dropped.items()]
    lines += [f"- Not built: {reason}: {count}" for reason, count in skipped.items()]
    declined = Counter(result.aggregate.decline_reasons)
    lines += [f"- Declined by the backend: {reason}: {count}" for reason, count in declined.most_common()]
    failed = [record for record in result.requests if record.status == "error"]
    lines += [
        f"- Failed: {record.item_id} {record.dataset} {record.transform}, {record.arm}: {record.error}"
        for record in failed[:_SHOWN_FAILURES]
    ]
    if len(failed) > _SHOWN_FAILURES:
        lines.append(f"- and {len(failed) - _SHOWN_FAILURES} more failed requests, which the result lists")
    yield "\n".join(lines) or "Nothing: every item has a clean pair, nothing was declined, no request failed."
