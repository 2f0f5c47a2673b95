"""Every item of a manifest: its donors offered, its recipient looked up, its blocks counted."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from sembench.offline.blocks import collect_blocks, count_exact_prefix, measure_blocks
from sembench.schema import InputError, ManifestItem, RequestRecord
from sembench.tokenization import Tokenizer
from semblend_core import (
    DonorOffer,
    LookupRequest,
    LookupResult,
    Namespace,
    Outcome,
    OutcomeKind,
    Plan,
    SemanticLookupProvider,
    Span,
    TokenIds,
    as_token_ids,
)

REGISTERED = "registered"
_ITEMS_AT_ONCE = 64


@dataclass(slots=True)
class OfflineRun:
    records: list[RequestRecord] = field(default_factory=list)
    """One per item, in the manifest's order; one whose provider failed has the status error."""
    offers: Counter[str] = field(default_factory=Counter)
    """Donors by what became of their offer: ``registered``, or the provider's reason for refusing."""


@dataclass(frozen=True, slots=True)
class _DonorPool:
    """Donors that one lookup may use."""

    namespace: Namespace
    donors: Mapping[str, TokenIds]
    blocks: AbstractSet[bytes]


def replay_offline(
    items: Sequence[ManifestItem],
    tokenizer: Tokenizer,
    provider: SemanticLookupProvider,
    block_size: int = 16,
    *,
    shared_pool: bool = False,
    on_item: Callable[[], None] = lambda: None,
) -> OfflineRun:
    """Look every item up, alone with its own donors or, with ``shared_pool``, among those of all items.

    The engine's exact prefix is not claimed for any recipient, so that the rates speak of the whole prompt: what exact
    matching covers is a figure of its own. A provider may have a method ``note_text(id, text)``; it is told the text of
    a donor before its offer, and of a recipient, under its request id, before its lookup.
    """
    if block_size < 1:
        raise InputError(f"--block-size must be at least 1, got {block_size}")
    run = OfflineRun()
    replay = _Replay(provider, tokenizer, block_size, run)
    if shared_pool:
        pool = replay.offer_all(items)
        recipients = tokenizer.encode_batch([item.recipient_prompt for item in items])
        for item, recipient in zip(items, recipients, strict=True):
            run.records.append(replay.measure(item, as_token_ids(recipient), pool))
            on_item()
        return run
    for item, donors, recipient in _tokenized(items, tokenizer):
        run.records.append(replay.measure_alone(item, recipient, donors))
        on_item()
    return run


class _Replay:
    def __init__(
        self, provider: SemanticLookupProvider, tokenizer: Tokenizer, block_size: int, run: OfflineRun
    ) -> None:
        self._provider = provider
        self._tokenizer = tokenizer
        self._block_size = block_size
        self._run = run
        self._note_text: Callable[[str, str], None] = getattr(provider, "note_text", lambda name, text: None)

    def measure_alone(self, item: ManifestItem, recipient: TokenIds, donors: Mapping[str, TokenIds]) -> RequestRecord:
        """With a namespace of its own, and its donors forgotten afterwards: no item can see another's."""
        pool = _DonorPool(self._namespace(item.item_id), donors, collect_blocks(donors.values(), self._block_size))
        texts = _texts_of([item])
        try:
            for donor_id, ids in donors.items():
                self._offer(pool.namespace, donor_id, ids, texts[donor_id])
        except InputError:
            raise
        except Exception as error:
            record = self._failed(item, recipient, pool, error)
        else:
            record = self.measure(item, recipient, pool)
        for donor_id in donors:
            with contextlib.suppress(Exception):  # No other item can see what was not forgotten.
                self._provider.forget_donor(pool.namespace, donor_id)
        return record

    def offer_all(self, items: Sequence[ManifestItem]) -> _DonorPool:
        texts = _texts_of(items)
        encoded = self._tokenizer.encode_batch(list(texts.values()))
        donors = {donor_id: as_token_ids(ids) for donor_id, ids in zip(texts, encoded, strict=True)}
        pool = _DonorPool(self._namespace(None), donors, collect_blocks(donors.values(), self._block_size))
        for donor_id, ids in donors.items():
            try:
                self._offer(pool.namespace, donor_id, ids, texts[donor_id])
            except InputError:
                raise
            except Exception as error:
                self._run.offers[f"raised {type(error).__name__}"] += 1
        return pool

    def measure(self, item: ManifestItem, recipient: TokenIds, pool: _DonorPool) -> RequestRecord:
        request = LookupRequest(f"offline-{item.item_id}", pool.namespace, recipient)
        try:
            self._note_text(request.request_id, item.recipient_prompt)
            started = time.perf_counter()
            result = self._provider.lookup(request)
            elapsed_us = (time.perf_counter() - started) * 1e6
            spans = check_spans(result, request, pool.donors)
            self._provider.report_outcome(_outcome_of(request, result))
        except InputError:
            raise
        except Exception as error:
            with contextlib.suppress(Exception):
                self._provider.report_outcome(Outcome(request.request_id, OutcomeKind.COLD))
            return self._failed(item, recipient, pool, error)
        if getattr(self._provider, "times_itself", False) and result.elapsed_us is not None:
            elapsed_us = result.elapsed_us  # It runs in another process: the way there is none of its time.
        return self._measured(item, recipient, pool, spans).model_copy(
            update={
                "outcome": "planned" if result.plan else "declined",
                "decline_reason": result.reason and str(result.reason),
                "lookup_us": elapsed_us,
            }
        )

    def _measured(
        self, item: ManifestItem, recipient: TokenIds, pool: _DonorPool, spans: Sequence[Span] | None
    ) -> RequestRecord:
        """``spans`` None: the provider's share is not known, that of exact matching is."""
        blocks = measure_blocks(recipient, pool.blocks, spans or (), self._block_size)
        known = spans is not None
        return RequestRecord(
            item_id=item.item_id,
            arm="offline",
            dataset=item.dataset,
            transform=item.transform,
            negative_control=item.negative_control,
            request_id=f"offline-{item.item_id}",
            prompt_tokens=recipient.size,
            total_blocks=blocks.total,
            exact_blocks=blocks.exact,
            exact_prefix_tokens=count_exact_prefix(recipient, pool.donors.values(), self._block_size),
            candidate_blocks=blocks.candidate if known else None,
            eligible_blocks=blocks.eligible if known else None,
            eligible_beyond_exact_blocks=blocks.eligible_beyond_exact if known else None,
            spans=len(spans) if spans is not None else None,
            donors=len({span.donor_id for span in spans}) if spans is not None else None,
        )

    def _failed(self, item: ManifestItem, recipient: TokenIds, pool: _DonorPool, error: Exception) -> RequestRecord:
        broken = isinstance(error, ContractError)
        reason = (
            f"provider broke the contract: {error}" if broken else f"provider raised {type(error).__name__}: {error}"
        )
        record = self._measured(item, recipient, pool, None)
        return record.model_copy(update={"status": "error", "error": reason, "outcome": "error"})

    def _offer(self, namespace: Namespace, donor_id: str, ids: TokenIds, text: str) -> None:
        self._note_text(donor_id, text)
        answer = self._provider.offer_donor(DonorOffer(donor_id, namespace, ids))
        self._run.offers[REGISTERED if answer.reason is None else str(answer.reason)] += 1

    def _namespace(self, item_id: str | None) -> Namespace:
        return Namespace(
            model="sembench-offline",
            revision="1",
            tokenizer=f"{self._tokenizer.name}@{self._tokenizer.digest}",
            dtype="none",
            kv_layout="none",
            block_size=self._block_size,
            adapter=None,
            salt=item_id or "all items",
        )


def _outcome_of(request: LookupRequest, result: LookupResult) -> Outcome:
    """Nothing is ever loaded here: a plan ends as a finding."""
    if result.reason is not None:
        return Outcome(request.request_id, OutcomeKind.DECLINED, reason=result.reason)
    return Outcome(request.request_id, OutcomeKind.DISCOVERY_ONLY)


def _tokenized(
    items: Sequence[ManifestItem], tokenizer: Tokenizer
) -> Iterator[tuple[ManifestItem, dict[str, TokenIds], TokenIds]]:
    """Each item with the ids of its donors and of its recipient; a text of several items is tokenized once.

    In windows, so that tokenizing, which may use every core, and lookups, which are timed, take turns.
    """
    for start in range(0, len(items), _ITEMS_AT_ONCE):
        window = items[start : start + _ITEMS_AT_ONCE]
        donors_of = [_texts_of([item]) for item in window]
        texts = [
            text
            for item, donors in zip(window, donors_of, strict=True)
            for text in (*donors.values(), item.recipient_prompt)
        ]
        unique = list(dict.fromkeys(texts))
        encoded = {text: as_token_ids(ids) for text, ids in zip(unique, tokenizer.encode_batch(unique), strict=True)}
        for item, donors in zip(window, donors_of, strict=True):
            yield item, {donor_id: encoded[text] for donor_id, text in donors.items()}, encoded[item.recipient_prompt]


def _texts_of(items: Sequence[ManifestItem]) -> dict[str, str]:
    """The donors' texts by id. A donor may serve several items, but an id has one text."""
    texts: dict[str, str] = {}
    for item in items:
        for donor in item.donor_prompts:
            if texts.setdefault(donor.donor_id, donor.text) != donor.text:
                raise InputError(f"item {item.item_id}: donor_id: {donor.donor_id} stands for two different texts")
    return texts


class ContractError(Exception):
    """The provider answered with something that no engine could load. The message says what."""


def check_spans(result: object, request: LookupRequest, donors: Mapping[str, TokenIds]) -> tuple[Span, ...]:
    """The spans that the provider proposes, none where it declines; ContractError where they cannot be loaded.

    That spans are in order and do not overlap was checked when the plan was made: ``Plan`` refuses others.
    """
    if not isinstance(result, LookupResult):
        raise ContractError(f"lookup returned {type(result).__name__}, not a LookupResult")
    if result.plan is None:
        return ()
    _check_plan(result.plan, request)
    for span in result.plan.spans:
        _check_span(span, request.token_ids, donors)
    return result.plan.spans


def _check_plan(plan: Plan, request: LookupRequest) -> None:
    if plan.request_id != request.request_id:
        raise ContractError(f"the plan is for request {plan.request_id!r}, not {request.request_id!r}")
    if plan.prompt_tokens != request.token_ids.size:
        raise ContractError(f"the plan is for {plan.prompt_tokens} tokens, the prompt has {request.token_ids.size}")
    if plan.exact_prefix_tokens != request.exact_prefix_tokens:
        raise ContractError(f"the plan has an exact prefix of {plan.exact_prefix_tokens} tokens that nobody claimed")


def _check_span(span: Span, prompt: TokenIds, donors: Mapping[str, TokenIds]) -> None:
    donor = donors.get(span.donor_id)
    if donor is None:
        raise ContractError(f"a span names donor {span.donor_id!r}, which was never offered here")
    if span.donor_end > donor.size:
        raise ContractError(
            f"a span ends at {span.donor_end} of donor {span.donor_id!r}, which has {donor.size} tokens"
        )
    wanted = prompt[span.target_start : span.target_end]
    differing = np.flatnonzero(wanted != donor[span.donor_start : span.donor_end])
    if differing.size:
        raise ContractError(
            f"a span of {span.length} tokens at {span.target_start} differs from donor {span.donor_id!r} in "
            f"{differing.size} of them, first at prompt position {span.target_start + int(differing[0])}"
        )
