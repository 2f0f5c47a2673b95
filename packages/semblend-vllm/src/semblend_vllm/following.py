"""Which requests take part, and in which namespace."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from semblend_core import DeclineReason, Namespace, Settings
from semblend_vllm.requests import FollowedRequest, Mode, is_all_tokens

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
            "extras": (
                ("quantization", str(model.quantization)),
                ("overrides", str(model.hf_overrides)),
                ("load_format", str(vllm_config.load_config.load_format)),
                ("weights", fingerprint(Path(model.model))),
            ),
        }

    def __call__(self, request: Any) -> FollowedRequest | DeclineReason:
        growing = getattr(request, "resumable", False)  # Its prompt goes on after its answer.
        if (
            not is_all_tokens(request)
            or request.sampling_params is None
            or request.skip_reading_prefix_cache
            or growing
        ):
            return DeclineReason.UNSUPPORTED_REQUEST
        mode, capture = _wishes(request.kv_transfer_params)
        return FollowedRequest(request, self.namespace(request), mode, capture)

    def namespace(self, request: Any) -> Namespace:
        lora = request.lora_request
        adapter = None if lora is None else f"{lora.lora_name}:{lora.lora_int_id}:{lora.lora_path}"
        return Namespace(**self._shared, adapter=adapter, salt=request.cache_salt)


def fingerprint(folder: Path) -> str:
    """Tells two checkpoints in one place apart; empty for a name that is no folder, which has its revision."""
    if not folder.is_dir():
        return ""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".gguf", ".json"))
    states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.blake2b(repr(states).encode(), digest_size=8).hexdigest()


def _wishes(parameters: dict[str, Any] | None) -> tuple[Mode, bool | None]:
    """Mode and capture; what is not understood counts as off, which harms nobody."""
    wish = (parameters or {}).get(PARAMETER, "on")
    mode, capture = (wish.get("mode", "on"), wish.get("capture")) if isinstance(wish, dict) else (wish, None)
    if mode == "off" or mode not in ("on", "discovery") or not isinstance(capture, bool | None):
        return "off", False
    return mode, capture
