"""Items one by one: donors served and offered, then the recipient in every arm."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

from sembench.embedded.arms import Arms, ItemReplay, Say
from sembench.embedded.comparison import greedy_text
from sembench.embedded.config import EmbeddedConfig
from sembench.embedded.model import EmbeddedModel
from sembench.embedded.policies import chooser_of
from sembench.embedded.prefix_cache import DonorMemory
from sembench.embedded.records import failed_records
from sembench.embedded.server import Server
from sembench.schema import ManifestItem
from semblend_core import Settings, TokenIds, as_token_ids, create_provider

if TYPE_CHECKING:
    from semblend_core.kv import DonorKv

_DONOR_MEMORY_BYTES = 1 << 30
_WARM_UP_TOKENS = 512


class Replayer:
    """Each item has a provider and a prefix cache of its own: what came before it is no matter."""

    def __init__(self, model: EmbeddedModel, config: EmbeddedConfig) -> None:
        self._model, self._engine = model, model.engine
        self._config = config
        self._choose = chooser_of(config)
        self._memory = DonorMemory(_DONOR_MEMORY_BYTES)
        self._behind = max(config.continuation_tokens, config.max_output_tokens)
        self._settings = Settings(quality_tier=config.tier, lookup_budget_ms=config.lookup_budget_ms)

    def warm_up(self) -> None:
        """The first forwards of a process pay for threads, memory and kernels: not at the first item's expense."""
        length = min(_WARM_UP_TOKENS, self._engine.max_tokens - self._behind)
        tokens = as_token_ids([number % self._engine.vocabulary for number in range(length)])
        for _ in range(2):
            greedy_text(self._engine, self._engine.prefill(tokens, room=self._behind), 4)

    def replay(self, item: ManifestItem, say: Say) -> ItemReplay:
        import torch

        prompt = self._model.encode(item.recipient_prompt)
        donors = {donor.donor_id: self._model.encode(donor.text) for donor in item.donor_prompts}
        problem = self._unservable(prompt, donors.values())
        if problem:
            return ItemReplay(item.item_id, failed_records(item, problem, prompt.size))
        try:
            return self._serve(item, prompt, donors, say)
        except torch.OutOfMemoryError as error:
            return ItemReplay(item.item_id, failed_records(item, str(error).splitlines()[0], prompt.size))

    def _serve(self, item: ManifestItem, prompt: TokenIds, donors: dict[str, TokenIds], say: Say) -> ItemReplay:
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
