"""What is remembered of one of vLLM's requests, and which of them take part."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from semblend_core import DeclineReason, Namespace, Settings, identity_of_weights
from semblend_core.serving import Namespaces, RequestLife, Stage, Wish


@dataclass(eq=False)
class VllmRequest(RequestLife):
    """A request whose blocks vLLM publishes under hashes that it finds in the request."""

    _true_hashes: list[Any] | None = field(default=None, repr=False)

    def taint(self, first_approximate: int, block_size: int) -> None:
        """Give the blocks from ``first_approximate`` on keys that only this request knows.

        Later hashes grow from earlier ones, so what is generated after approximate KV is tainted too.
        """
        hashes = self.request.block_hashes
        if self._true_hashes is None:
            self._true_hashes = list(hashes)
        first = first_approximate // block_size
        if first < len(hashes):
            # Random, not made of the request's id: clients choose those, and may choose one twice.
            size = len(hashes[first])
            random = os.urandom(size * (len(hashes) - first))
            hashes[first:] = [random[at : at + size] for at in range(0, len(random), size)]
        self.approximate_from = first_approximate

    def untaint(self) -> None:
        """Back to the true hashes: nothing approximate was written after all, or its blocks were given back."""
        assert self.stage not in (Stage.LOADING, Stage.REUSING), "approximate KV can never be published as exact"
        if self._true_hashes is not None:
            # Hashes of generated tokens go too: they grew from tainted ones, and vLLM makes them again.
            self.request.block_hashes[:] = self._true_hashes
        self._true_hashes, self.approximate_from = None, None


class Follower:
    """Makes the record of a request from vLLM's, by one function for capture and lookup."""

    def __init__(self, vllm_config: Any, settings: Settings) -> None:
        self._settings = settings
        self._adapters: dict[tuple[int, str], str] = {}
        """What is known of adapters' weights."""
        model, cache = vllm_config.model_config, vllm_config.cache_config
        dtype = cache.cache_dtype if cache.cache_dtype != "auto" else model.dtype
        commit = getattr(model.hf_config, "_commit_hash", None)
        self._namespaces = Namespaces(
            model=str(model.model),
            revision=str(model.revision or commit or "local"),
            tokenizer=f"{model.tokenizer}@{model.tokenizer_revision or 'local'}",
            dtype=str(dtype).removeprefix("torch."),
            kv_layout="vllm",
            block_size=int(cache.block_size),
            tensor_parallel_size=int(vllm_config.parallel_config.tensor_parallel_size),
            extras=(
                ("quantization", str(model.quantization)),
                ("overrides", str(model.hf_overrides)),
                ("load_format", str(vllm_config.load_config.load_format)),
                ("weights", identity_of_weights(model.model, commit)),
            ),
        )

    def new_weights(self) -> None:
        """What was computed until now is another model's."""
        self._namespaces.new_weights()
        self._adapters.clear()

    def __call__(self, request: Any) -> VllmRequest | DeclineReason:
        growing = getattr(request, "resumable", False)  # Its prompt goes on after its answer.
        generates = request.sampling_params is not None
        if not is_all_tokens(request) or not generates or request.skip_reading_prefix_cache or growing:
            return DeclineReason.UNSUPPORTED_REQUEST
        wish = Wish.among(request.kv_transfer_params)
        return VllmRequest(request, str(request.request_id), self.namespace(request), request.prompt_token_ids, wish)

    def namespace(self, request: Any) -> Namespace:
        return self._namespaces.of(self._adapter(request.lora_request), request.cache_salt)

    def _adapter(self, lora: Any) -> str | None:
        if lora is None:
            return None
        known = (lora.lora_int_id, lora.lora_path)
        if known not in self._adapters or getattr(lora, "load_inplace", False):
            self._adapters[known] = identity_of_weights(lora.lora_path)
        return f"{lora.lora_name}:{lora.lora_int_id}:{lora.lora_path}:{self._adapters[known]}"


def is_all_tokens(request: Any) -> bool:
    """Not so where a part of the prompt is no tokens, such as embeddings or images."""
    embeds = getattr(request, "prompt_embeds", None)
    return request.prompt_token_ids is not None and embeds is None and not request.mm_features
