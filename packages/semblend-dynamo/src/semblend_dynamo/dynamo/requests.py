"""A request as Dynamo's frontend hands it over, read as far as placement needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from semblend_core import Namespace, TokenIds, as_token_ids

Preprocessed: TypeAlias = dict[str, Any]
"""Dynamo's PreprocessedRequest as JSON."""

_NOT_ONLY_TOKENS = ("multi_modal_data", "mm_routing_info", "multi_modal_uuids", "prompt_embeds", "prefill_result")
"""Equal tokens do not mean equal KV where one of these is set."""
_PLACED_ALREADY = ("backend_instance_id", "prefill_worker_id", "decode_worker_id")


@dataclass(frozen=True, slots=True, eq=False)
class RoutedRequest:
    request_id: str
    token_ids: TokenIds
    token_list: list[int]
    """The same, as Dynamo's bindings take them."""
    salt: str | None
    """The tenant's, raw: Dynamo hashes blocks with it. Never logged, never kept."""
    adapter: str | None
    namespace: Namespace
    why_not: str | None
    """Why this request is left to Dynamo; None: it may be placed."""
    wants_account: bool
    """The client asked for engine data, so it is told how the request was placed."""


class RequestReader:
    """One for all requests to a model: it knows the fields of the namespace that the requests do not carry."""

    def __init__(self, model: str, block_size: int) -> None:
        self._model = model
        self._block_size = block_size

    def namespace(self, salt: str | None, adapter: str | None) -> Namespace:
        """One rule for donors and requests, the same in every replica of the router."""
        return Namespace(
            model=self._model,
            revision="served",
            tokenizer="served",
            dtype="served",
            kv_layout="dynamo",
            block_size=self._block_size,
            adapter=adapter,
            salt=salt,
        )

    def read(self, request_id: str, request: Preprocessed) -> RoutedRequest:
        """Raises InvalidTokenIdsError for tokens that no tokenizer produces."""
        routing = _table(request.get("routing"))
        extra = _table(request.get("extra_args"))
        nvext = _table(extra.get("nvext"))
        salt = routing.get("cache_salt") or nvext.get("cache_salt") or None
        adapter = routing.get("lora_name") or None
        tokens = list(request["token_ids"])
        return RoutedRequest(
            request_id=request_id,
            token_ids=as_token_ids(tokens),
            token_list=tokens,
            salt=salt,
            adapter=adapter,
            namespace=self.namespace(salt, adapter),
            why_not=_why_not(request, routing),
            wants_account="engine_data" in (nvext.get("extra_fields") or ()),
        )


def _why_not(request: Mapping[str, Any], routing: Mapping[str, Any]) -> str | None:
    if any(request.get(name) for name in _NOT_ONLY_TOKENS):
        return "not_only_tokens"
    if any(routing.get(name) is not None for name in _PLACED_ALREADY):
        return "placed_already"
    return None


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
