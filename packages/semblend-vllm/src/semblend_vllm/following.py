"""Which requests take part, and in which namespace."""

from __future__ import annotations

import os
from typing import Any

from semblend_core import DeclineReason, Namespace, Settings, Wish, identity_of_weights
from semblend_vllm.requests import FollowedRequest, is_all_tokens


class Follower:
    """Makes the record of a request from vLLM's, by one function for capture and lookup."""

    def __init__(self, vllm_config: Any, settings: Settings) -> None:
        self._settings = settings
        self._adapters: dict[tuple[int, str], str] = {}
        """What is known of adapters' weights."""
        model, cache = vllm_config.model_config, vllm_config.cache_config
        dtype = cache.cache_dtype if cache.cache_dtype != "auto" else model.dtype
        commit = getattr(model.hf_config, "_commit_hash", None)
        self._shared: dict[str, Any] = {
            "model": str(model.model),
            "revision": str(model.revision or commit or "local"),
            "tokenizer": f"{model.tokenizer}@{model.tokenizer_revision or 'local'}",
            "dtype": str(dtype).removeprefix("torch."),
            "kv_layout": "vllm",
            "block_size": int(cache.block_size),
            "tensor_parallel_size": int(vllm_config.parallel_config.tensor_parallel_size),
            "extras": (
                ("quantization", str(model.quantization)),
                ("overrides", str(model.hf_overrides)),
                ("load_format", str(vllm_config.load_config.load_format)),
                ("weights", identity_of_weights(model.model, commit)),
            ),
        }
        self._epoch = "start"

    def new_weights(self) -> None:
        """What was computed until now is another model's. Random, so that no other process takes it for its own."""
        self._epoch = os.urandom(8).hex()
        self._adapters.clear()

    def __call__(self, request: Any) -> FollowedRequest | DeclineReason:
        growing = getattr(request, "resumable", False)  # Its prompt goes on after its answer.
        if (
            not is_all_tokens(request)
            or request.sampling_params is None
            or request.skip_reading_prefix_cache
            or growing
        ):
            return DeclineReason.UNSUPPORTED_REQUEST
        return FollowedRequest(request, self.namespace(request), Wish.among(request.kv_transfer_params))

    def namespace(self, request: Any) -> Namespace:
        shared = {**self._shared, "extras": (*self._shared["extras"], ("epoch", self._epoch))}
        return Namespace(**shared, adapter=self._adapter(request.lora_request), salt=request.cache_salt)

    def _adapter(self, lora: Any) -> str | None:
        if lora is None:
            return None
        known = (lora.lora_int_id, lora.lora_path)
        if known not in self._adapters or getattr(lora, "load_inplace", False):
            self._adapters[known] = identity_of_weights(lora.lora_path)
        return f"{lora.lora_name}:{lora.lora_int_id}:{lora.lora_path}:{self._adapters[known]}"
