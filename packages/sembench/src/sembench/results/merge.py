"""Two runs made one: the cold arm of the first beside the warm arm of the second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sembench.exit_codes import REFUSED_BY_FIGURES
from sembench.identity import identify, load_manifest, sha256_of
from sembench.results.aggregate import build_result
from sembench.schema import InputError, ManifestItem, RequestRecord, Result

TEMPLATE_TOKENS = 64
"""What a chat template alone may bring into a cache that is cold for the prompt."""

_SAME_ENGINE = ("name", "version", "model", "protocol", "dtype")
_SAME_CONFIG = (
    "engine",
    "model",
    "template",
    "max_output_tokens",
    "dtype",
    "device",
    "concurrency",
    "seed",
    "quality_threshold",
    "block_size",
)
_PROMPT_SLACK = 64
"""A first line that keeps arms apart may make a prompt longer by a few tokens."""


def merge_results(cold: Result, warm: Result, manifest: Path | None = None) -> Result:
    """CleanPair the runs by item. Raises InputError (exit code 1) where they cannot be compared, with all reasons."""
    reasons = [*_arm_faults(cold, warm), *_difference_faults(cold, warm)]
    if not reasons:
        reasons = [*_coldness_faults(cold), *_prompt_faults(cold, warm)]
    if reasons:
        raise InputError(
            "the runs cannot be merged:\n" + "\n".join(f"- {reason}" for reason in reasons), REFUSED_BY_FIGURES
        )
    path, items = _items(cold, warm, manifest)
    records = [record for record in cold.requests if record.arm in ("cold", "exact")]
    taken = {(record.item_id, record.arm) for record in records}
    records += [
        _without_comparisons(record)
        for record in warm.requests
        if record.arm != "cold" and (record.item_id, record.arm) not in taken
    ]
    run = identify("merged", path, len(items), seed=warm.run.seed, engine=warm.run.engine)
    run = run.model_copy(
        update={
            "started_at": min(cold.run.started_at, warm.run.started_at),
            "finished_at": max(filter(None, (cold.run.finished_at, warm.run.finished_at)), default=None),
            "host": warm.run.host,
            "serve_command": warm.run.serve_command,
        }
    )
    sources = {name: {"run": source.run.model_dump(), "config": source.config} for name, source in _named(cold, warm)}
    block_size = warm.aggregate.block_size or cold.aggregate.block_size or 16
    return build_result(run, {**warm.config, "merged_from": sources}, items, records, block_size)


def _without_comparisons(record: RequestRecord) -> RequestRecord:
    """The record without figures against the cold arm of its own run; ROUGE-L is made anew against the other."""
    against_cold = ("cold_rouge_l", "kl_mean", "kl_max", "ppl_ratio", "top1")
    return record.model_copy(update={"quality": record.quality.model_copy(update=dict.fromkeys(against_cold))})


def _named(cold: Result, warm: Result) -> list[tuple[str, Result]]:
    return [("cold", cold), ("warm", warm)]


def _arm_faults(cold: Result, warm: Result) -> list[str]:
    """Files in the wrong place. Two paired runs hold both arms each; then the backend's events tell them apart."""
    faults = []
    for name, result in _named(cold, warm):
        if result.run.kind in ("offline", "load", "noise-floor"):
            faults.append(f"--{name} is a result of the kind {result.run.kind}, which serves no arms")
        arms = {record.arm for record in result.requests}
        if name not in arms:
            held = ", ".join(sorted(arms)) or "no records"
            hint = "; are the two files swapped?" if arms else ""
            faults.append(f"--{name} holds no record of the arm {name}, only: {held}{hint}")
    if not faults and _reused(cold) and not _reused(warm):
        faults.append("--cold holds warm records with confirmed reuse and --warm holds none: the files are swapped")
    return faults


def _reused(result: Result) -> bool:
    return any((record.confirmed_tokens or 0) > 0 for record in result.requests if record.arm == "warm")


def _difference_faults(cold: Result, warm: Result) -> list[str]:
    faults = []
    if cold.run.manifest_sha256 is None or cold.run.manifest_sha256 != warm.run.manifest_sha256:
        faults.append(
            f"manifests differ: --cold ran {cold.run.manifest} (sha256 {_short(cold)}), --warm {warm.run.manifest} "
            f"(sha256 {_short(warm)})"
        )
    facts: list[tuple[str, Any, Any]] = [
        ("the number of items", cold.run.manifest_items, warm.run.manifest_items),
        ("the kind of run", _kind(cold), _kind(warm)),
        ("the block size", cold.aggregate.block_size, warm.aggregate.block_size),
    ]
    facts += [(f"the engine's {key}", cold.run.engine.get(key), warm.run.engine.get(key)) for key in _SAME_ENGINE]
    facts += [(f"the setting {key}", cold.config.get(key), warm.config.get(key)) for key in _SAME_CONFIG]
    told = "{} differs: {!r} in --cold, {!r} in --warm"
    return [*faults, *(told.format(*fact) for fact in facts if fact[1] != fact[2])]


def _kind(result: Result) -> str:
    return result.run.kind


def _short(result: Result) -> str:
    return (result.run.manifest_sha256 or "unknown")[:12]


def _coldness_faults(cold: Result) -> list[str]:
    served = [record for record in cold.requests if record.arm == "cold" and record.status == "ok"]
    allowed = TEMPLATE_TOKENS if cold.config.get("template") == "chat" else 0
    checks: tuple[tuple[str, Callable[[RequestRecord], bool]], ...] = (
        ("have confirmed reuse", lambda record: (record.confirmed_tokens or 0) > 0),
        ("had tokens in the engine's cache", lambda record: (record.engine_cached_tokens or 0) > allowed),
        ("were served warm", lambda record: record.proved_cold is False),
        ("are not proved cold", lambda record: record.proved_cold is None),
    )
    faults = []
    for what, is_faulty in checks:
        faulty = [record for record in served if is_faulty(record)]
        if faulty:
            proof = f" ({faulty[0].cold_proof})" if faulty[0].cold_proof else ""
            faults.append(f"{len(faulty)} of {len(served)} cold records {what}, such as {faulty[0].item_id}{proof}")
    return faults


def _prompt_faults(cold: Result, warm: Result) -> list[str]:
    """The same item must have been the same prompt: another template or tokenizer shows in its length."""
    lengths = {record.item_id: record.prompt_tokens for record in cold.requests if record.arm == "cold"}
    differing = [
        (record, lengths[record.item_id])
        for record in warm.requests
        if record.arm == "warm" and _far_apart(record, lengths.get(record.item_id))
    ]
    if not differing:
        return []
    record, length = differing[0]
    return [
        f"{len(differing)} items have prompts of another length, such as {record.item_id}: {length} tokens cold, "
        f"{record.prompt_tokens} warm"
    ]


def _far_apart(record: RequestRecord, cold_tokens: int | None) -> bool:
    if record.prompt_tokens is None or cold_tokens is None:
        return False
    return abs(record.prompt_tokens - cold_tokens) > _PROMPT_SLACK


def _items(cold: Result, warm: Result, manifest: Path | None) -> tuple[Path, list[ManifestItem]]:
    """The items of the runs' manifest: denominators come from it, so it must be at hand and unchanged."""
    candidates = [manifest] if manifest else [Path(run.manifest) for run in (warm.run, cold.run) if run.manifest]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        tried = ", ".join(str(path) for path in candidates) or "none is named"
        raise InputError(f"the runs' manifest is not there ({tried}): name it with --manifest")
    if sha256_of(path) != cold.run.manifest_sha256:
        told = f"{path}: is not the manifest of these runs (its sha256 differs): name it with --manifest"
        raise InputError(told, REFUSED_BY_FIGURES)
    return path, load_manifest(path, cold.run.manifest_items)
