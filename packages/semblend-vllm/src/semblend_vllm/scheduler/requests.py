"""What is remembered of one of vLLM's requests, and which of them take part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from semblend_core import DeclineReason, Namespace, Settings, identity_of_weights
from semblend_core.serving import Lineage, Namespaces, RequestLife, Stage, Wish, may_share
from semblend_vllm.compat.stored_types import identity_of_scales

MOST_ADAPTERS = 1024
"""Whose weights are remembered. Those of others are looked at again."""


@dataclass(frozen=True, eq=False)
class Taken:
    """What a request takes of lineages, where it lies."""

    lineages: tuple[Lineage, ...]
    """Each grew from the one before it."""
    exact: int
    """Tokens in front of it that are vLLM's own."""
    end: int

    @property
    def tokens(self) -> int:
        return self.end - self.exact


@dataclass(eq=False)
class VllmRequest(RequestLife):
    """A request whose blocks vLLM publishes under hashes that it finds in the request."""

    taken: Taken | None = None
    """Set while its hashes name a lineage that vLLM holds blocks of."""
    lineage: Lineage | None = None
    """Of what is computed behind its claim."""
    looked: tuple[int, int] | None = None
    """Generation of lineages and exact prefix when one was last looked for."""
    must_find: int = 0
    """Tokens that vLLM's cache must hold of it, or it is not computed."""
    missed: bool = False
    """Its cache did not hold them."""
    over_steps: bool = False
    """The rows of its claim are computed before vLLM schedules it."""
    _true_hashes: list[Any] | None = field(default=None, repr=False)
    _make_hashes: Any = field(default=None, repr=False)
    """vLLM's own way to the hashes of new tokens."""

    @property
    def true_hashes(self) -> list[Any]:
        """Of its tokens alone."""
        hashes: list[Any] = self.request.block_hashes if self._true_hashes is None else self._true_hashes
        return hashes

    @property
    def like(self) -> tuple[Any, Any]:
        """What it takes to make another request of the same kind: vLLM's, and how it makes hashes of tokens alone."""
        return self.request, self._make_hashes or self.request._block_hasher

    def rename(self, block_size: int) -> None:
        """Name its blocks by what is taken and claimed. Exact ones keep their hashes."""
        if self.taken is None and self.lineage is None:
            self._restore()
            return
        self._follow_true_hashes()
        hashes, true = self.request.block_hashes, self.true_hashes
        hashes[:] = true
        exact = 0 if self.taken is None else self.taken.exact
        for lineage in (*(self.taken.lineages if self.taken else ()), *((self.lineage,) if self.lineage else ())):
            first = max(lineage.start, exact) // block_size
            hashes[first:] = shadows(true[first:], lineage.name)

    def untaint(self) -> None:
        """Back to the true hashes: nothing approximate was written after all, or its blocks were given back."""
        self.taken, self.lineage, self.looked = None, None, None
        self._restore()

    @property
    def served_of(self) -> Lineage | None:
        """The lineage that names the last of its KV."""
        return self.lineage or (None if self.taken is None else self.taken.lineages[-1])

    def _restore(self) -> None:
        assert self.stage not in (Stage.LOADING, Stage.REUSING), "approximate KV can never be published as exact"
        if self._true_hashes is not None:
            self.request.block_hashes[:] = self._true_hashes
            self.request._block_hasher = self._make_hashes
        self._true_hashes, self.approximate_from = None, None

    def _follow_true_hashes(self) -> None:
        """vLLM makes the hashes of generated tokens from those before them. They must be named as the others are."""
        if self._true_hashes is not None:
            return
        self._true_hashes = true = list(self.request.block_hashes)
        self._make_hashes = make = self.request._block_hasher
        if make is None:
            return  # Nothing is published.

        def make_named(request: Any) -> list[Any]:
            named = request.block_hashes
            request.block_hashes = true
            try:
                new = make(request)
            finally:
                request.block_hashes = named
            true.extend(new)
            name = self.lineage.name if self.lineage is not None else self._last_taken().name
            return shadows(new, name)

        self.request._block_hasher = make_named

    def _last_taken(self) -> Lineage:
        assert self.taken is not None
        return self.taken.lineages[-1]


@dataclass(frozen=True, eq=False)
class Served:
    """What it takes to compute a served request again."""

    like: Any
    """vLLM's request."""
    names: list[Any]
    """Of the blocks that it was served with."""
    hashes: list[Any]
    """Of the same blocks by their tokens alone."""
    approximate_from: int

    @classmethod
    def of(cls, life: VllmRequest, block_size: int) -> Served | None:
        """What a finished request was served with; None where nothing of it was approximate, or is to be kept."""
        if life.stage is not Stage.REUSING or life.purged or life.approximate_from is None:
            return None
        # The last token of the prompt is left to be computed: it says what the answer begins with.
        whole = (len(life.prompt) - 1) // block_size
        names, hashes = list(life.request.block_hashes[:whole]), list(life.true_hashes[:whole])
        return cls(life.request, names, hashes, life.approximate_from) if len(names) == whole > 0 else None


def shadows(hashes: Sequence[bytes], name: bytes) -> list[bytes]:
    """The same blocks under a lineage's name. All at once: a long prompt has thousands."""
    if not hashes:
        return []
    size = len(hashes[0])
    secret = np.frombuffer((name * -(-size // len(name)))[:size], np.uint8)
    named = (np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, size) ^ secret).tobytes()
    return [named[at : at + size] for at in range(0, len(named), size)]


def identity_of_weights_in(vllm_config: Any) -> str:
    """Of the weights that vLLM loads."""
    model = vllm_config.model_config
    commit = getattr(model.hf_config, "_commit_hash", None)
    return identity_of_weights(model.model, commit, vllm_config.load_config.load_format)


class Follower:
    """Makes the record of a request from vLLM's, by one function for capture and lookup."""

    def __init__(self, vllm_config: Any, settings: Settings) -> None:
        self._settings = settings
        self._adapters: dict[tuple[int, str], str] = {}
        """What is known of adapters' weights. Names and numbers are vLLM's, another with every start."""
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
                ("weights", identity_of_weights_in(vllm_config)),
                *identity_of_scales(vllm_config),
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
        namespace = self.namespace(request)
        if not may_share(self._settings, namespace):
            return DeclineReason.NO_SALT
        wish = Wish.among(request.kv_transfer_params)
        return VllmRequest(request, str(request.request_id), namespace, request.prompt_token_ids, wish)

    def adapter_unloaded(self, number: int) -> None:
        for known in [each for each in self._adapters if each[0] == number]:
            del self._adapters[known]

    def may_repeat(self, request: Any) -> bool:
        """Whether one of our own may be made like an earlier request: its adapter may have been unloaded since.

        vLLM loads an adapter that is asked for, and ends where its files are gone. Its server does not even tell the
        engine what it unloads.
        """
        lora = request.lora_request
        if lora is None:
            return True
        known = self._adapters.get((lora.lora_int_id, lora.lora_path))
        return known is not None and known == identity_of_weights(lora.lora_path)

    def namespace(self, request: Any) -> Namespace:
        return self._namespaces.of(self._adapter(request.lora_request), request.cache_salt or None)

    def _adapter(self, lora: Any) -> str | None:
        if lora is None:
            return None
        known = (lora.lora_int_id, lora.lora_path)
        if known not in self._adapters or getattr(lora, "load_inplace", False):
            while len(self._adapters) >= MOST_ADAPTERS:
                del self._adapters[next(iter(self._adapters))]
            self._adapters[known] = identity_of_weights(lora.lora_path)
        return self._adapters[known]


def is_all_tokens(request: Any) -> bool:
    """Not so where a part of the prompt is no tokens, such as embeddings or images."""
    embeds = getattr(request, "prompt_embeds", None)
    return request.prompt_token_ids is not None and embeds is None and not request.mm_features
