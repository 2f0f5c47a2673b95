"""Puts the pieces together around an engine that is about to start."""

from __future__ import annotations

import atexit
import logging
import os
from dataclasses import replace
from functools import partial
from typing import Any

from semblend_core import (
    AuditSink,
    ProviderError,
    SemanticLookupProvider,
    SemanticPrefixProvider,
    SemBlend,
    SettingError,
    Settings,
    create_provider,
    identity_of_weights,
    named_provider,
    open_audit,
    what_is_on,
)
from semblend_core.control import TenantCommands, open_control
from semblend_core.kv import HeadShare, Rotation, StoreDirectoryError, StoreOptions, find_learned_shift
from semblend_core.serving import AliasLedger, Namespaces, QualityGuard
from semblend_core.serving.tree import KeptDonors, SlotPool
from semblend_sglang.compat import cache_class, stock_cache
from semblend_sglang.compat.background import why_never_idle
from semblend_sglang.compat.generations import why_too_old
from semblend_sglang.compat.hooks import purge_storage, why_not_hooked
from semblend_sglang.compat.metrics import EngineMetrics
from semblend_sglang.compat.ranks import give_orders_of, ranks_of
from semblend_sglang.compat.stored_types import identity_of_scales, scales_of
from semblend_sglang.compat.support import resolved, why_no_correction, why_unsupported
from semblend_sglang.compat.timing import cost_gate_of
from semblend_sglang.compat.versions import installed_version, why_changed
from semblend_sglang.scheduler.aliases import AliasPath
from semblend_sglang.scheduler.comparing import Served
from semblend_sglang.scheduler.fitting import BatchLimits
from semblend_sglang.scheduler.ranks import Ranks
from semblend_sglang.scheduler.side import Side
from semblend_sglang.settings import SglangSettings
from semblend_sglang.worker.pool import slot_pool_of

logger = logging.getLogger(__name__)

PROVIDER_SETTING = SglangSettings.variable("provider")
HOW_WEIGHTS_ARE_USED = ("load_format", "quantization", "torchao_config", "json_model_override_args", "model_impl")
"""Arguments of SGLang's with which one checkpoint gives other KV."""


def build_cache(ctx: Any) -> Any:
    """The factory of the backend ``semblend``. An engine that is not supported gets SGLang's own cache."""
    settings = Settings.from_env()
    unsupported, ranks = why_too_old(ctx), None
    if unsupported is None:
        ranks = ranks_of(ctx)
        unsupported = _of_any_rank(ranks, why_not_hooked() or why_changed() or why_unsupported(ctx))
    if unsupported is not None:
        logger.error("SemBlend is off, SGLang runs as if it were absent: %s", unsupported)
        return stock_cache(ctx)
    if SglangSettings.from_env().keep_donors:
        StoreOptions.from_settings(settings)  # Budgets that cannot be are said now.
    cache = cache_class().build(ctx)
    if ranks is not None:
        ranks.begin(os.urandom(32))
    kept = _kept(settings, ranks) if SglangSettings.from_env().keep_donors else None
    failed: Exception | None = None
    try:
        _switch_on(ctx, cache, settings, kept, ranks)
    except Exception as error:
        failed = error
    why = _of_any_rank(ranks, None if failed is None else type(failed).__name__)
    if isinstance(failed, SettingError | ProviderError):
        raise failed  # Somebody asked for what cannot be, and wants to know.
    if why is not None:
        cache.semblend = cache.semblend_aliases = None
        logger.error("SemBlend is off, SGLang runs as if it were absent: it could not start (%s)", why, exc_info=failed)
    return cache


def _of_any_rank(ranks: Ranks | None, why: str | None) -> str | None:
    """What keeps SemBlend from running, here or at another rank."""
    return why if ranks is None else next((said for said in ranks.exchange(why) if said is not None), None)


def _switch_on(ctx: Any, cache: Any, settings: Settings, kept: KeptDonors | None, ranks: Ranks | None) -> None:
    namespaces = Namespaces(**shared_fields(ctx))
    if ranks is not None and not ranks.is_first:
        # It finds nothing by itself, and counts nothing: the first rank does both.
        settings = replace(settings, audit_path="")
        idle = create_provider(replace(settings, enabled=False), engine="sglang")
        cache.semblend = _side(ctx, cache, idle, settings, namespaces, None, kept, ranks)
        atexit.register(cache.semblend.close)
        return
    named = SglangSettings.from_env().provider
    theirs = named_provider(PROVIDER_SETTING, named) if named else None
    if theirs is not None and not isinstance(theirs, SemanticLookupProvider):
        if ranks is not None:
            raise ProviderError(f"{PROVIDER_SETTING}={named!r} has no place with several ranks: it finds no KV to move")
        cache.semblend_aliases = _aliases(cache, theirs, settings, namespaces)
        return
    provider = theirs or create_provider(settings, engine="sglang")
    # One stream for the provider and the cost gate. A provider of somebody else's may have its own.
    audit = provider.audit if isinstance(provider, SemBlend) else None
    cache.semblend = _side(ctx, cache, provider, settings, namespaces, audit, kept, ranks)
    atexit.register(cache.semblend.close)


def _aliases(cache: Any, provider: SemanticPrefixProvider, settings: Settings, namespaces: Namespaces) -> AliasPath:
    ledger = AliasLedger(open_audit(settings, "sglang"))
    no_answers: QualityGuard[Served] = QualityGuard(settings)  # None is compared.
    metrics = EngineMetrics(ledger.stats, no_answers.news)
    aliases = AliasPath(ledger, settings, namespaces, cache.page_size, metrics.update)
    aliases.set_provider(provider)
    atexit.register(ledger.close)
    atexit.register(aliases.close)
    logger.info(
        "SemBlend's search is off in SGLang %s: %s proposes KV of other tokens, which counts as `alias`, not as reuse",
        installed_version(),
        type(provider).__name__,
    )
    return aliases


def _side(
    ctx: Any,
    cache: Any,
    provider: SemanticLookupProvider,
    settings: Settings,
    namespaces: Namespaces,
    audit: AuditSink | None,
    kept: KeptDonors | None,
    ranks: Ranks | None,
) -> Side:
    runner = ctx.tp_worker.model_runner
    engine_pool = ctx.params.token_to_kv_pool_allocator.get_kvcache()
    # Prompts with images, whose positions have different parts (mrope), are declined one by one.
    rotations = Rotation.by_layer(ctx.model_config.hf_text_config, int(engine_pool.layer_num), text_only=True)
    pool = slot_pool_of(engine_pool, rotations, getattr(runner, "forward_stream", None), scales_of(ctx, engine_pool))
    no_correction = why_no_correction(ctx, pool)
    if no_correction is None:
        share = HeadShare() if ranks is None else HeadShare(ranks.rank, ranks.size)
        weights = partial(_weights, ctx)
        pool.learned = find_learned_shift(settings.corrections_dir, weights, pool.shape, pool.device, share)
    if isinstance(provider, SemanticPrefixProvider):
        provider.on_init()
    arguments = resolved(ctx.server_args)
    step_tokens = _most_tokens(arguments)
    limits = BatchLimits(
        # Rows, and at least a page of the request itself, must fit into one batch.
        max(0, step_tokens - cache.page_size),
        int(runner.max_running_requests),
        with_decoding=bool(arguments.enable_mixed_chunk),
    )
    guard: QualityGuard[Served] = QualityGuard(settings, audit)
    decides = ranks is None or ranks.is_first
    step_rows = limits.sequences - 1
    costs = cost_gate_of(ctx, settings, audit, step_tokens, step_rows, guard.spending) if decides else None
    correcting = no_correction is None
    side = Side(
        provider, settings, cache, pool, limits, namespaces, kept, costs, audit, guard, ranks, correcting=correcting
    )
    why_not_compared = why_never_idle(ctx.server_args)
    if why_not_compared is not None:
        guard.cannot(why_not_compared)
    side.operator.purge_storage = lambda: purge_storage(cache)
    _open_control(settings, side)
    _warm_up(pool, side)
    if not decides:
        return side
    if ranks is not None:
        give_orders_of(side)
    side.on_change = EngineMetrics(provider.stats, guard.news).update
    engine = f"SGLang {installed_version()}"
    logger.info("%s", what_is_on(settings, engine, donors_in_engine=True, stored=kept is not None))
    if no_correction is not None:
        logger.warning("several places at once are reused by the fast tier only: %s", no_correction)
    return side


def _open_control(settings: Settings, side: Side) -> None:
    """A rank that only follows is asked for what it keeps: the rest is done when the first rank is asked."""
    role, commands = "scheduler", TenantCommands(side.operator.purge_between_rounds, side.operator.show_between_rounds)
    if side.ranks is not None and not side.ranks.is_first:
        if side.donors.kept is None:
            return
        store = side.donors.kept.store
        role, commands = f"worker-{side.ranks.rank}", TenantCommands(store.purge, store.held_by)
    control = open_control(settings, role, commands)
    if control is not None:
        atexit.register(control.close)


def _warm_up(pool: SlotPool, side: Side) -> None:
    """Where KV cannot be moved at all, as without a compiler for the kernels, nothing is loaded: prompts are computed
    as ever, and what could have been reused is counted."""
    try:
        pool.warm_up()
    except Exception as error:
        logger.exception("SemBlend's kernels do not run")
        side.refuse(f"the kernels that move KV do not run here: {type(error).__name__}")


def _kept(settings: Settings, ranks: Ranks | None) -> KeptDonors | None:
    """At all ranks or at none."""
    rank, size = (0, 1) if ranks is None else (ranks.rank, ranks.size)
    kept, why = None, None
    try:
        kept = KeptDonors(StoreOptions.from_settings(settings, rank=rank, ranks=size))
    except StoreDirectoryError as error:  # Such as the second of two replicas on one host.
        why = str(error)
    except Exception as error:
        if ranks is None:
            raise
        why = f"{type(error).__name__} at rank {rank}"
    why = _of_any_rank(ranks, why)
    if why is not None:
        logger.error("donors live in SGLang's own cache only: %s", why)
        if kept is not None:
            kept.close()
        return None
    return kept


def _most_tokens(arguments: Any) -> int:
    """Of one batch."""
    chunk = arguments.chunked_prefill_size
    return int(chunk if chunk is not None and chunk > 0 else arguments.max_prefill_tokens)


def shared_fields(ctx: Any) -> dict[str, Any]:
    arguments, engine_pool = resolved(ctx.server_args), ctx.params.token_to_kv_pool_allocator.get_kvcache()
    commit = getattr(ctx.model_config.hf_config, "_commit_hash", None)
    return {
        "model": str(arguments.model_path),
        "revision": str(arguments.revision or commit or "local"),
        "tokenizer": str(arguments.tokenizer_path or arguments.model_path),
        "dtype": str(engine_pool.dtype).removeprefix("torch."),
        "kv_layout": "sglang",
        "block_size": int(ctx.params.page_size),
        "tensor_parallel_size": int(ctx.tp_size),
        "extras": (
            ("weights", _weights(ctx)),
            ("adapters", str(_adapters(arguments))),
            *identity_of_scales(ctx, engine_pool),
            *((name, str(getattr(arguments, name, None))) for name in HOW_WEIGHTS_ARE_USED),
        ),
    }


def _weights(ctx: Any) -> str:
    """Which ones SGLang loads."""
    arguments = resolved(ctx.server_args)
    commit = getattr(ctx.model_config.hf_config, "_commit_hash", None)
    return identity_of_weights(arguments.model_path, commit, arguments.load_format)


def _adapters(arguments: Any) -> list[tuple[str, str]]:
    """SGLang's id of an adapter is made of its name and path, and says nothing of what lies there."""
    known = (getattr(arguments, "enable_lora", False) and arguments.lora_paths) or []
    return sorted((str(lora.lora_id), identity_of_weights(str(lora.lora_path))) for lora in known)
