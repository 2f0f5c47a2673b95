"""Which requests take part, and in which namespace."""

from __future__ import annotations

from typing import Any

from semblend_core import DeclineReason, Namespace, Settings
from semblend_vllm.requests import FollowedRequest, Mode, prompt_tokens_of

PARAMETER = "semblend"
"""In a request's ``kv_transfer_params``: ``"off"``, ``"discovery"`` or ``{"mode": ..., "capture": true or false}``."""


class Follower:
    """Makes the record of a request from vLLM's, by one function for capture and lookup."""

    def __init__(self, vllm_config: Any, settings: Settings) -> None:
        self._settings = settings
        model, cache = vllm_config.model_config, vllm_config.cache_config
        dtype = cache.cache_dtype if cache.cache_dtype != "auto" else model.dtype
        self._shared: dict[str, Any] = {
            "model": str(model.model),
            "revision": str(model.revision or "local"),
            "tokenizer": f"{model.tokenizer}@{model.tokenizer_revision or 'local'}",
            "dtype": str(dtype).removeprefix("torch."),
            "kv_layout": "vllm",
            "block_size": int(cache.block_size),
            "tensor_parallel_size": int(vllm_config.parallel_config.tensor_parallel_size),
        }

    def __call__(self, request: Any) -> FollowedRequest | DeclineReason:
        tokens = prompt_tokens_of(request)
        if tokens is None or request.sampling_params is None or request.skip_reading_prefix_cache:
            return DeclineReason.UNSUPPORTED_REQUEST
        mode, capture = _wishes(request.kv_transfer_params)
        return FollowedRequest(request, self.namespace(request), tokens, mode, capture)

    def namespace(self, request: Any) -> Namespace:
        lora = request.lora_request
        adapter = None if lora is None else f"{lora.lora_name}:{lora.lora_int_id}:{lora.lora_path}"
        return Namespace(**self._shared, adapter=adapter, salt=request.cache_salt)


def _wishes(parameters: dict[str, Any] | None) -> tuple[Mode, bool]:
    """Mode and capture; what is not understood counts as off, which harms nobody."""
    wish = (parameters or {}).get(PARAMETER, "on")
    if isinstance(wish, dict):
        mode, capture = wish.get("mode", "on"), bool(wish.get("capture", True))
    else:
        mode, capture = wish, wish != "off"
    return (mode, capture) if mode in ("on", "off", "discovery") else ("off", False)
