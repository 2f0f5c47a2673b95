"""The reference engine as a server for one item: its prefix cache, SemBlend's provider behind it, and a clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sembench.embedded.config import Chooser
from sembench.embedded.model import EmbeddedModel
from semblend_core import (
    DeclineReason,
    DonorOffer,
    LookupRequest,
    LookupResult,
    Namespace,
    Outcome,
    OutcomeKind,
    Plan,
    SemanticLookupProvider,
    TokenIds,
)
from semblend_core.recompute import Recompute, TierChoice
from semblend_core.reference import Prefill, ReferenceEngine, Workspace, prefill_reusing

if TYPE_CHECKING:
    from semblend_core.kv import DonorKv


MIN_PREFIX_SHARE = 1 / 8
"""A shorter exact prefix is computed: behind one, this engine's attention goes through a mask, and costs more than so
little saves. A chat template's first words, which all prompts share, would make every miss look taxed."""


class PrefixCache:
    """The longest exact prefix in whole blocks. Holds whatever it is given: it lives as long as one item."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._entries: list[tuple[TokenIds, DonorKv]] = []

    def publish(self, tokens: TokenIds, kv: DonorKv) -> None:
        """Keep ``kv``, computed for ``tokens``: it must be exact."""
        self._entries.append((tokens[: kv.tokens], kv))

    def match(self, tokens: TokenIds) -> tuple[int, DonorKv | None]:
        """How many leading tokens are covered, and by what. At least the last token is left to compute."""
        length, found = 0, None
        for held, kv in self._entries:
            common = round_down_to_blocks(min(count_common_prefix(tokens, held), tokens.size - 1), self._block_size)
            if common > length:
                length, found = common, kv
        return length, found


class DonorMemory:
    """Captured KV by prompt, so that items with the same donor prefill it once. The least recently used goes first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._held: OrderedDict[bytes, DonorKv] = OrderedDict()

    def get(self, tokens: TokenIds, compute: Callable[[], DonorKv]) -> DonorKv:
        key = tokens.tobytes()
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        kv = compute()
        self._held[key] = kv
        self._bytes += kv.nbytes
        while self._bytes > self._max_bytes and len(self._held) > 1:
            self._bytes -= self._held.popitem(last=False)[1].nbytes
        return kv


def count_common_prefix(one: TokenIds, other: TokenIds) -> int:
    length = min(one.size, other.size)
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if different.size else length


def round_down_to_blocks(tokens: int, block_size: int) -> int:
    return tokens // block_size * block_size


@dataclass(frozen=True, eq=False)
class ServedPrefill:
    """One request up to its first token."""

    prefill: Prefill
    ttft_s: float
    """From the request's tokens to the first answer token: prefix match, lookup, relocation, recompute, forward."""
    outcome: Outcome | None = None
    """What was reported to the provider; None where it was not asked."""
    found: LookupResult | None = None
    plan: Plan | None = None
    """The plan as the planner handed it over, before the policy added to it; None where it was not carried out."""
    recompute: Recompute | None = None
    policy: str | None = None
    """Name of the recompute policy, where a plan was carried out."""


class Server:
    """Serves donors, then recipients. ``room`` is space for tokens behind a prompt."""

    def __init__(
        self, model: EmbeddedModel, provider: SemanticLookupProvider, choose: Chooser, block_size: int, room: int
    ) -> None:
        self._engine: ReferenceEngine = model.engine
        self._namespace = model.namespace
        self._provider = provider
        self._choose = choose
        self._block_size = block_size
        self._room = room
        self._caches: dict[str, PrefixCache] = {}
        self._donors: dict[str, DonorKv] = {}
        self.donor_tokens: list[TokenIds] = []

    def keep_donor(self, donor_id: str, tokens: TokenIds, kv: DonorKv, namespace: Namespace | None = None) -> None:
        """A served donor: in the prefix cache, and offered to the provider, which may decline it."""
        namespace = namespace or self._namespace
        self._cache_of(namespace).publish(tokens, kv)
        self._donors[donor_id] = kv
        self.donor_tokens.append(tokens)
        self._provider.offer_donor(DonorOffer(donor_id, namespace, tokens))

    def publish(self, served: ServedPrefill) -> None:
        """Keep of a served prompt what the engine may: nothing from the first relocated token on."""
        tokens = served.prefill.token_ids
        exact = tokens.size if served.plan is None else served.plan.first_approximate_token
        length = round_down_to_blocks(exact, self._block_size)
        if length:
            self._cache_of(self._namespace).publish(tokens, self._engine.capture(served.prefill.workspace, length))

    def serve_cold(self, tokens: TokenIds) -> ServedPrefill:
        """Everything computed, in a workspace that holds nothing."""
        with self._engine.timed() as elapsed:
            workspace = self._empty_workspace(tokens)
            prefill = self._compute_behind(workspace, tokens, 0)
            return ServedPrefill(prefill, elapsed())

    def serve_again(self, cold: Prefill) -> ServedPrefill:
        """The same prompt from its own KV, which stays where it is as in a paged cache: the last block is computed."""
        tokens = cold.token_ids
        exact = round_down_to_blocks(tokens.size - 1, self._block_size)
        with self._engine.timed() as elapsed:
            cold.workspace.truncate(exact)
            prefill = self._compute_behind(cold.workspace, tokens, exact)
            return ServedPrefill(prefill, elapsed())

    def serve(
        self, request_id: str, tokens: TokenIds, *, reuse: bool = True, namespace: Namespace | None = None
    ) -> ServedPrefill:
        """As an engine serves it: its own exact prefix first, then what the provider's plan and the policy reuse."""
        namespace = namespace or self._namespace
        with self._engine.timed() as elapsed:
            exact, prefix = self._own_prefix(namespace, tokens)
            request = LookupRequest(request_id, namespace, tokens, exact)
            found = self._provider.lookup(request) if reuse else None
            plan = found.loadable_plan if found else None
            choice = self._choose(plan) if plan else None
            if plan is None or choice is None:
                prefill, recompute = self._prefill_behind(tokens, exact, prefix), None
            else:
                prefill, recompute = self._prefill_reusing(tokens, plan, choice, prefix)
            ttft = elapsed()
        if found is None:
            return ServedPrefill(prefill, ttft)
        outcome = _outcome(request_id, found, recompute)
        self._provider.report_outcome(outcome)
        if recompute is None or choice is None:
            return ServedPrefill(prefill, ttft, outcome, found)
        return ServedPrefill(prefill, ttft, outcome, found, plan, recompute, choice.policy.name)

    def _cache_of(self, namespace: Namespace) -> PrefixCache:
        return self._caches.setdefault(namespace.digest, PrefixCache(self._block_size))

    def _own_prefix(self, namespace: Namespace, tokens: TokenIds) -> tuple[int, DonorKv | None]:
        exact, prefix = self._cache_of(namespace).match(tokens)
        return (exact, prefix) if exact >= MIN_PREFIX_SHARE * tokens.size else (0, None)

    def _prefill_reusing(
        self, tokens: TokenIds, plan: Plan, choice: TierChoice, prefix: DonorKv | None
    ) -> tuple[Prefill, Recompute]:
        done = prefill_reusing(
            self._engine,
            tokens,
            plan,
            self._donors,
            choice.policy,
            choice.budget,
            exact_prefix=prefix,
            room=self._room,
        )
        return _with_first_token(done.prefill), done.recompute

    def _prefill_behind(self, tokens: TokenIds, exact: int, prefix: DonorKv | None) -> Prefill:
        workspace = self._empty_workspace(tokens)
        if prefix is not None:
            assert prefix.values is not None
            workspace.copy_in(0, prefix.keys[:, :exact], prefix.values[:, :exact], approximate=False)
        return self._compute_behind(workspace, tokens, exact)

    def _compute_behind(self, workspace: Workspace, tokens: TokenIds, exact: int) -> Prefill:
        logits = self._engine.compute(workspace, tokens[exact:], np.arange(exact, tokens.size))
        assert logits is not None
        computed = tokens.size - exact
        prefill = Prefill(tokens, workspace, logits, 0.0, computed, reused_tokens=0, exact_prefix_tokens=exact)
        return _with_first_token(prefill)

    def _empty_workspace(self, tokens: TokenIds) -> Workspace:
        return self._engine.workspace(min(tokens.size + self._room, self._engine.max_tokens))


def _with_first_token(prefill: Prefill) -> Prefill:
    """Picking the first token is part of the time to it; every arm does it before its clock stops."""
    prefill.logits.argmax().item()
    return prefill


def _outcome(request_id: str, found: LookupResult, recompute: Recompute | None) -> Outcome:
    if recompute is not None:
        used = recompute.plan.reused_tokens
        if used:
            return Outcome(request_id, OutcomeKind.MATERIALIZED, confirmed_tokens=used)
        # A policy that computes everything after all leaves nothing that was reused.
        return Outcome(request_id, OutcomeKind.DECLINED, reason=DeclineReason.DOES_NOT_PAY)
    if found.reason is DeclineReason.EXACT_PREFIX_COVERS:
        return Outcome(request_id, OutcomeKind.EXACT_PREFIX)
    return Outcome(request_id, OutcomeKind.DECLINED, reason=found.reason or DeclineReason.QUALITY_TIER)
