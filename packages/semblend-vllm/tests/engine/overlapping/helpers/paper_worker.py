"""A model on paper: which token was written into which slot of the KV cache, and behind which others.

What it answers is right only where everything that a request attends to is: the tokens, computed with the weights that
it is computed with, for nobody of another tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.outputs import KVConnectorOutput, LogprobsTensors, ModelRunnerOutput

from semblend_core import DeclineReason, SelfTestResult, SelfTestState, tenant_of_salt
from semblend_core.serving import Landed
from semblend_vllm.messages import VllmWorkerNews

BLOCK, BLOCKS = 16, 96
VOCABULARY = 40_000
GARBAGE = 49_000
"""A token that no right answer holds."""
APPROXIMATE = 0
"""In the place of a digest: the right token at the right position, behind other tokens or none."""
_POWERS = np.random.default_rng(1).integers(1, 2**63, 65_536, dtype=np.uint64) | np.uint64(1)


def digests(tokens: Sequence[int]) -> Any:
    """One for each token, of it and all before it."""
    return np.cumsum((np.asarray(tokens, np.uint64) + np.uint64(1)) * _POWERS[: len(tokens)])


def next_token(tokens: Sequence[int]) -> int:
    return int(digests(tokens)[-1] % np.uint64(VOCABULARY))


def right_answer(prompt: Sequence[int], length: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@dataclass
class Written:
    tokens: list[int]
    blocks: list[int]
    computed: int
    logprobs: int | None = None
    """Asked for, of each token of its prompt."""

    def slots(self, end: int) -> Any:
        first = np.asarray(self.blocks, np.int64)[:, None] * BLOCK
        return (first + np.arange(BLOCK)).ravel()[:end]


class PaperWorker:
    def __init__(self, blocks: int = BLOCKS) -> None:
        slots = blocks * BLOCK
        self._tokens, self._positions = np.full(slots, -1), np.full(slots, -1)
        self._digests = np.zeros(slots, np.uint64)
        self._weights_of, self._tenants = np.full(slots, -1), np.full(slots, None, object)
        self.weights = 0
        """Which they are now."""
        self.tenant_of: Callable[[str], str | None] = lambda request_id: None
        self.prompt_of: Callable[[str], Sequence[int]] = lambda request_id: ()
        self.wrong_weights = self.leaks = 0
        """Requests computed behind KV of other weights, or of another tenant's."""
        self._origins: dict[Any, tuple[int, str | None]] = {}
        """Weights and tenant of each donor."""
        self._batch: dict[str, Written] = {}
        self.may_be_approximate: set[str] = set()
        """Requests that were loaded for, or that go on from one that was."""
        self.donors: dict[Any, Any] = {}
        self.fails: Callable[[Any], bool] = lambda order: False
        """Of a load, a correction or a probe."""
        self.says_nothing: Callable[[Any], bool] = lambda order: False
        """Of a probe: neither scores nor that there are none."""
        self.is_copying = False
        """Whether copies of captured prompts are under way, and nothing is said of them."""
        self.strays = False
        """Whether it finds another token likeliest behind approximate KV."""
        self.tells_all_rows = True
        """Of a prompt whose logprobs are asked for, as one of vLLM's runners does; the other: of what it computed."""
        self._self_test = {0: SelfTestResult(SelfTestState.PASSED)}
        self._lost: dict[Any, Any] = {}
        self._copied: dict[Any, frozenset[int]] = {}

    def run(self, output: Any) -> Any:
        self._take_over(output)
        news = VllmWorkerNews(self_test=self._self_test, lost=self._lost)
        self._self_test, self._lost = {}, {}
        work = output.kv_connector_metadata
        for donor in [each for each in self.donors if tenant_of_salt(self._origins[each][1]) in work.purge]:
            del self.donors[donor]
        for namespace, donor_id in work.forget:
            self.donors.pop((namespace.digest, donor_id), None)
        for load in work.loads:
            self._load(load, news)
        for correction in work.corrections:
            self._correct(correction, news)
        # What comes first in a prompt is written first, as in each layer of a forward.
        ids = sorted(output.num_scheduled_tokens, key=lambda request_id: self._batch[request_id].computed)
        starts = {request_id: self._batch[request_id].computed for request_id in ids}
        sampled = {request_id: self._compute(request_id, output.num_scheduled_tokens[request_id]) for request_id in ids}
        for probe in work.probes:
            self._probe(probe, output, news)
        scored = [each for each in ids if self._batch[each].logprobs is not None and sampled[each]]
        for capture in work.captures:
            self._capture(capture)
        if not self.is_copying:
            news.durable, self._copied = self._copied, {}
        order = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=order,
            req_id_to_index={request_id: number for number, request_id in enumerate(order)},
            sampled_token_ids=[sampled[request_id] for request_id in order],
            prompt_logprobs_dict={request_id: self._scores(request_id, starts[request_id]) for request_id in scored},
            kv_connector_output=KVConnectorOutput(kv_connector_worker_meta=news),
        )

    def lose(self, donor: Any) -> None:
        """As a budget does."""
        del self.donors[donor]
        self._lost[donor] = DeclineReason.DONOR_EVICTED

    def holds_exactly(self, block: int, tokens: Sequence[int]) -> bool:
        """Whether a block is the last of ``tokens``, computed behind all of them."""
        slots = Written([], [block], 0).slots(BLOCK)
        return bool((self._digests[slots] == digests(tokens)[-BLOCK:]).all() and (self._tokens[slots] >= 0).all())

    def _take_over(self, output: Any) -> None:
        for request_id in output.finished_req_ids:
            self._batch.pop(request_id, None)
        for new in output.scheduled_new_reqs:
            tokens = list(new.prefill_token_ids or new.prompt_token_ids)
            if "#" in new.req_id:  # A row's own tokens are told, and what is in front of them is not.
                start = new.num_computed_tokens
                tokens[:start] = self.prompt_of(new.req_id.split("#")[0])[:start]
            asked = new.sampling_params.prompt_logprobs
            self._batch[new.req_id] = Written(tokens, list(new.block_ids[0]), new.num_computed_tokens, asked)
        going_on = output.scheduled_cached_reqs
        for request_id, blocks, computed in zip(
            going_on.req_ids, going_on.new_block_ids, going_on.num_computed_tokens, strict=True
        ):
            sequence, fresh = self._batch[request_id], list(blocks[0]) if blocks else []
            if request_id in going_on.resumed_req_ids:
                sequence.tokens, sequence.blocks = list(going_on.all_token_ids[request_id]), fresh
            else:
                sequence.blocks += fresh
            sequence.computed = computed

    def _load(self, load: Any, news: Any) -> None:
        sequence = Written([], load.block_ids, 0)
        kept = [self.donors.get((load.namespace.digest, span.donor_id)) for span in load.spans]
        if any(tokens is None for tokens in kept) or self.fails(load):
            news.failed[load.request_id] = DeclineReason.DONOR_EVICTED
            return
        for span, tokens in zip(load.spans, kept, strict=True):
            slots = sequence.slots(span.target_end)[span.target_start :]
            self._tokens[slots] = tokens[span.donor_start : span.donor_start + span.length]
            self._positions[slots] = np.arange(span.target_start, span.target_end)
            self._digests[slots] = APPROXIMATE
            self._weights_of[slots], self._tenants[slots] = self._origins[load.namespace.digest, span.donor_id]
        news.landed[load.request_id] = Landed(load.reused_tokens, 1)
        self.may_be_approximate.add(load.request_id)

    def _correct(self, correction: Any, news: Any) -> None:
        if self.fails(correction):
            news.failed[correction.request_id] = DeclineReason.LOAD_FAILED
            for span in correction.spans:
                self._tokens[Written([], correction.block_ids, 0).slots(span.target_end)[span.target_start :]] = -1

    def _probe(self, probe: Any, output: Any, news: Any) -> None:
        """The question looks where its tokens say: the same question over the same tokens looks at the same."""
        start, end = probe.question
        rows = [request_id for request_id in output.num_scheduled_tokens if request_id.startswith(probe.request_id)]
        ends = {self._batch[row].computed + output.num_scheduled_tokens[row]: self._batch[row].computed for row in rows}
        assert ends[end] <= start, "queries are seen in the step that computes them"
        slots = Written([], probe.block_ids, 0).slots(end)
        if self.says_nothing(probe):
            return
        scores = (digests(self._tokens[slots]) % np.uint64(997)).astype(np.float32)
        news.scores[probe.request_id] = None if self.fails(probe) else scores

    def _compute(self, request_id: str, tokens: int) -> list[int]:
        sequence = self._batch[request_id]
        end = sequence.computed + tokens
        slots, known = sequence.slots(end), digests(sequence.tokens[:end])
        before, new = slots[: sequence.computed], slots[sequence.computed :]
        whose = request_id.split("#")[0]
        right = self._holds(sequence, before, known, approximate=whose in self.may_be_approximate)
        # Where the tokens are others, as after a load that failed, the answer shows it.
        right = right and self._is_its_own(before, self.tenant_of(whose))
        self._tokens[new] = sequence.tokens[sequence.computed : end] if right else -1
        self._positions[new] = np.arange(sequence.computed, end)
        self._weights_of[new], self._tenants[new] = self.weights, self.tenant_of(whose)
        exact = (self._digests[before] != APPROXIMATE).all()
        self._digests[new] = known[sequence.computed :] if exact else APPROXIMATE
        if end < len(sequence.tokens):
            return []
        sequence.tokens.append(next_token(sequence.tokens) if right else GARBAGE)
        return sequence.tokens[-1:]

    def _scores(self, request_id: str, start: int) -> LogprobsTensors:
        """The likeliest token behind each of a prompt's; in front of it the token that stands there."""
        sequence = self._batch[request_id]
        prompt = sequence.tokens[:-1]
        rows = LogprobsTensors.empty_cpu(len(prompt) - 1, sequence.logprobs + 1)
        for at, slot in enumerate(sequence.slots(len(prompt) - 1)[start:], start=start):
            astray = self.strays and self._digests[slot] == APPROXIMATE
            likeliest = next_token(prompt[: at + 1]) + astray
            rows.logprob_token_ids[at] = torch.tensor(
                [prompt[at + 1], *range(likeliest, likeliest + sequence.logprobs)]
            )
            rows.logprobs[at] = torch.log(torch.tensor([0.5, *(0.5**n for n in range(1, sequence.logprobs + 1))]))
        if self.tells_all_rows:
            return rows
        return LogprobsTensors(rows.logprob_token_ids[start:], rows.logprobs[start:], rows.selected_token_ranks[start:])

    def _holds(self, sequence: Written, slots: Any, known: Any, *, approximate: bool) -> bool:
        end = len(slots)
        exact = self._digests[slots] == known[:end]
        places = (self._tokens[slots] == sequence.tokens[:end]) & (self._positions[slots] == np.arange(end))
        return bool((places & (exact | (approximate & (self._digests[slots] == APPROXIMATE)))).all())

    def _is_its_own(self, slots: Any, tenant: str | None) -> bool:
        stale = bool((self._weights_of[slots] != self.weights).any())
        foreign = any(other != tenant for other in self._tenants[slots])
        self.wrong_weights += stale
        self.leaks += foreign
        return not stale and not foreign

    def _capture(self, capture: Any) -> None:
        sequence = Written(list(capture.token_ids), capture.block_ids, 0)
        slots, known = sequence.slots(len(sequence.tokens)), digests(sequence.tokens)
        assert self._holds(sequence, slots, known, approximate=False), "a donor holds nothing but exact KV"
        if capture.donor_id is not None:
            donor = (capture.namespace.digest, capture.donor_id)
            self.donors[donor] = capture.token_ids
            weights, tenants = set(self._weights_of[slots].tolist()), set(self._tenants[slots].tolist())
            assert len(weights) == len(tenants) == 1, "a donor is of one tenant, and of one state of the weights"
            self._origins[donor] = weights.pop(), tenants.pop()
            self._copied[donor] = frozenset((0,))
