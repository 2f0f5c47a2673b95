"""Items one by one: donors served and offered, then the recipient in every arm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from sembench.embedded.comparison import ColdTruth, Divergence, GreedyText, generate_greedily, prefill_in_two
from sembench.embedded.config import Chooser, EmbeddedConfig
from sembench.embedded.model import EmbeddedModel
from sembench.embedded.records import ScoredAnswer, add_block_counts, make_failed_records, make_record
from sembench.embedded.server import DonorMemory, ServedPrefill, Server
from sembench.schema import ManifestItem, Quality, RequestRecord
from sembench.scoring import judge
from semblend_core import Settings, TokenIds, as_token_ids, create_provider

if TYPE_CHECKING:
    from semblend_core.kv import DonorKv


ROUNDS_SECONDS = 12.0
"""No further round is begun once an item's timed requests took this long: long prompts are steady enough."""

Say = Callable[[str], None]
_DONOR_MEMORY_BYTES = 1 << 30
_WARM_UP_TOKENS = 512


class FinishedItem(BaseModel):
    """All records of an item, as they are kept until the run has ended."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    item_id: str
    records: list[RequestRecord]
    noise_floor: Divergence | None = None
    """Cold against cold, by the same comparison; None where it was not measured."""


@dataclass
class Times:
    """Seconds to the first token, one entry per round."""

    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    exact: list[float] = field(default_factory=list)

    @property
    def spent(self) -> float:
        return sum(self.cold) + sum(self.warm) + sum(self.exact)

    def note(self, cold: ServedPrefill, warm: ServedPrefill, exact: ServedPrefill | None) -> None:
        self.cold.append(cold.ttft_s)
        self.warm.append(warm.ttft_s)
        if exact is not None:
            self.exact.append(exact.ttft_s)


class Arms:
    """The protocol for one item, whose donors ``server`` has served. Cold and warm take turns."""

    def __init__(
        self, model: EmbeddedModel, config: EmbeddedConfig, server: Server, item: ManifestItem, prompt: TokenIds
    ) -> None:
        self._model, self._engine, self._config = model, model.engine, config
        self._server, self._item, self._prompt = server, item, prompt
        self._times = Times()

    def run(self, say: Say) -> FinishedItem:
        say("cold")
        cold = self._server.serve_cold(self._prompt)
        cold_text = self._text(cold, at_least=self._config.continuation_tokens)
        continuation = as_token_ids(cold_text.beyond[: self._config.continuation_tokens])
        truth = ColdTruth(self._engine, cold.prefill, continuation)
        cold_reply = self._reply(cold_text)

        say("with reuse")
        warm = self._serve_warm(1)
        warm_reply = self._reply(self._text(warm), truth.compare(warm.prefill))

        # Last of the three: it computes the end of the cold prompt's KV once more, in place.
        exact = self._server.serve_again(cold.prefill) if self._config.exact else None
        exact_reply = ScoredAnswer(Quality(**asdict(truth.compare(exact.prefill)))) if exact else None
        self._times.note(cold, warm, exact)
        self._further_rounds(say)

        records = [make_record(self._item, "cold", cold, self._times.cold, cold_reply)]
        if exact and exact_reply:
            records.append(make_record(self._item, "exact", exact, self._times.exact, exact_reply))
        record = make_record(self._item, "warm", warm, self._times.warm, warm_reply)
        records.append(add_block_counts(record, warm, self._server.donor_tokens, self._config.block_size))
        records += self._probe(warm, truth, say)
        floor = self._noise_floor(truth, say)
        return FinishedItem(item_id=self._item.item_id, records=records, noise_floor=floor)

    def _further_rounds(self, say: Say) -> None:
        for number in range(2, self._config.repeats + 1):
            if self._times.spent > ROUNDS_SECONDS:
                return
            say(f"round {number} of {self._config.repeats}")
            cold = self._server.serve_cold(self._prompt)
            warm = self._serve_warm(number)
            self._times.note(cold, warm, self._server.serve_again(cold.prefill) if self._config.exact else None)

    def _probe(self, warm: ServedPrefill, truth: ColdTruth, say: Say) -> list[RequestRecord]:
        """What the engine kept of a request with reuse must not show in the same prompt without it."""
        if not self._config.probe or not warm.prefill.reused_tokens:
            return []
        say("again with reuse off")
        self._server.publish(warm)
        probe = self._server.serve(f"{self._item.item_id}-probe", self._prompt, reuse=False)
        reply = self._reply(self._text(probe), truth.compare(probe.prefill))
        return [make_record(self._item, "probe", probe, [probe.ttft_s], reply)]

    def _noise_floor(self, truth: ColdTruth, say: Say) -> Divergence | None:
        if not self._config.noise_floor or self._prompt.size < 2:
            return None
        say("noise floor")
        return truth.compare(prefill_in_two(self._engine, self._prompt, self._config.continuation_tokens))

    def _serve_warm(self, number: int) -> ServedPrefill:
        return self._server.serve(f"{self._item.item_id}-warm-{number}", self._prompt)

    def _text(self, served: ServedPrefill, at_least: int = 0) -> GreedyText:
        return generate_greedily(self._engine, served.prefill, self._config.max_output_tokens, at_least)

    def _reply(self, said: GreedyText, strayed: Divergence | None = None) -> ScoredAnswer:
        text = self._model.decode(said.tokens)
        quality = judge(text, self._item, self._config.quality_threshold)
        if strayed is not None:
            quality = quality.model_copy(update=asdict(strayed))
        return ScoredAnswer(quality, text, len(said.tokens), said.seconds)


class Replayer:
    """Each item has a provider and a prefix cache of its own: what came before it is no matter."""

    def __init__(self, model: EmbeddedModel, config: EmbeddedConfig, choose: Chooser) -> None:
        self._model, self._engine = model, model.engine
        self._config, self._choose = config, choose
        self._memory = DonorMemory(_DONOR_MEMORY_BYTES)
        self._behind = max(config.continuation_tokens, config.max_output_tokens)
        self._settings = Settings(quality_tier=config.tier, lookup_budget_ms=config.lookup_budget_ms)

    def warm_up(self) -> None:
        """The first forwards of a process pay for threads, memory and kernels: not at the first item's expense."""
        length = min(_WARM_UP_TOKENS, self._engine.max_tokens - self._behind)
        tokens = as_token_ids([number % self._engine.vocabulary for number in range(length)])
        for _ in range(2):
            generate_greedily(self._engine, self._engine.prefill(tokens, room=self._behind), 4)

    def replay(self, item: ManifestItem, say: Say) -> FinishedItem:
        import torch

        prompt = self._model.encode(item.recipient_prompt)
        donors = {donor.donor_id: self._model.encode(donor.text) for donor in item.donor_prompts}
        problem = self._unservable(prompt, donors.values())
        if problem:
            return _failed(item, problem, prompt)
        try:
            return self._serve(item, prompt, donors, say)
        except torch.OutOfMemoryError as error:
            return _failed(item, str(error).splitlines()[0], prompt)

    def _serve(self, item: ManifestItem, prompt: TokenIds, donors: dict[str, TokenIds], say: Say) -> FinishedItem:
        with closing(create_provider(self._settings, engine="sembench-embedded")) as provider:
            server = Server(self._model, provider, self._choose, self._config.block_size, self._behind)
            for number, (donor_id, tokens) in enumerate(donors.items(), 1):
                say(f"donor {number} of {len(donors)}")
                server.keep_donor(donor_id, tokens, self._donor_kv(tokens))
            return Arms(self._model, self._config, server, item, prompt).run(say)

    def _donor_kv(self, tokens: TokenIds) -> DonorKv:
        def compute() -> DonorKv:
            return self._engine.capture(self._engine.prefill(tokens, room=0).workspace, tokens.size)

        return self._memory.get(tokens, compute)

    def _unservable(self, prompt: TokenIds, donors: Iterable[TokenIds]) -> str | None:
        limit = self._engine.max_tokens
        longest = max([prompt.size + self._behind, *(tokens.size for tokens in donors)])
        if longest <= limit:
            return None
        return f"its prompts, with the text behind them, need {longest} tokens; {self._model.name} takes {limit}"


def _failed(item: ManifestItem, problem: str, prompt: TokenIds) -> FinishedItem:
    return FinishedItem(item_id=item.item_id, records=make_failed_records(item, problem, prompt.size))
