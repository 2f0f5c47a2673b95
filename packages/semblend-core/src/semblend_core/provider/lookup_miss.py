"""The lookup contract in the shape proposed for LMCache (LMCache/LMCache#2803): tokens to look up instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from semblend_core.contract import Namespace, Plan
from semblend_core.provider.semblend import SemBlend


@dataclass(frozen=True, slots=True)
class SemanticMissResult:
    """Tokens whose KV a store of exact chunks holds, for a request that it holds nothing of."""

    alternate_token_ids: list[int]
    """What to look up instead of the request's tokens."""
    num_cached_tokens: int
    """How many leading tokens of the request that stands for; 0 where the KV must be moved first."""
    skip_save: bool = True
    """The store must not keep the request's KV under its own tokens."""
    provider_metadata: Mapping[str, Any] = field(default_factory=dict)
    """``"plan"``: which of the donor's tokens go where. It can be pickled."""
    source_id: str = ""


class SemanticMissProvider:
    """Four calls around a store that finds KV by hashes of tokens. None may block or raise.

    LMCache has not taken the proposal on: this is for those who carry it in a build of their own.
    """

    def __init__(self, provider: SemBlend, namespace: Namespace, *, relocates: bool = False) -> None:
        """``provider`` must have been made for ``namespace``. ``relocates``: whether the caller moves what it finds.

        A caller that does not is told of spans at their own place alone. It would load others unrotated.
        """
        self._provider, self._namespace, self._relocates = provider, namespace, relocates
        self._approximate: set[str] = set()
        """Requests under way that were told of donors."""

    def on_init(self, config: object = None, vllm_config: object = None) -> None:
        self._provider.on_init()

    def on_lookup_miss(
        self, request_id: str, token_ids: Sequence[int], num_computed_tokens: int
    ) -> SemanticMissResult | None:
        """The store holds nothing of the request beyond what is computed already. None: prefill normally."""
        found = self._provider.on_prefix_miss(request_id, token_ids)
        if found is None:
            return None
        plan = found.metadata["plan"]
        assert isinstance(plan, Plan)
        if found.num_cached_tokens > num_computed_tokens:
            tokens, cached = found.alternate_token_ids.tolist(), found.num_cached_tokens
        elif self._relocates:
            tokens, cached = self._donor_tokens(plan), 0
        else:
            return None
        if not tokens:
            return None
        self._approximate.add(request_id)
        return SemanticMissResult(tokens, cached, True, {"plan": plan}, plan.spans[0].donor_id)

    def on_request_finished(self, request_id: str, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Its prompt becomes a donor, unless its own KV may be approximate."""
        if request_id in self._approximate:
            self._approximate.discard(request_id)
        else:
            self._provider.on_request_cached(request_id, token_ids[:num_prompt_tokens])

    def on_shutdown(self) -> None:
        self._provider.on_shutdown()

    def _donor_tokens(self, plan: Plan) -> list[int]:
        """Of the first span's donor, as far as spans of it reach: chunks are found from a donor's first token on."""
        donor = plan.spans[0].donor_id
        tokens = self._provider.donor_tokens(self._namespace, donor)
        reach = max(span.donor_end for span in plan.spans if span.donor_id == donor)
        return [] if tokens is None else tokens[:reach].tolist()
