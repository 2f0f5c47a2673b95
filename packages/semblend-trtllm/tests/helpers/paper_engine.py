"""TensorRT-LLM's executor on paper: its order of calls, its exact tree and its pages, with a small model on a CPU.

What is TensorRT-LLM's own Python runs as it is: the manager and the classes that a connector inherits. What is compiled
there is written anew here as far as a connector can see it. Pages that nobody has written hold NaN, so an answer that
read one shows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from connector_sources import Api, LlmRequestState
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

BLOCK = 32
VOCABULARY = 30016


def small_model() -> LlamaForCausalLM:
    """Random weights, large enough that the answer depends on every token."""
    torch.manual_seed(7)
    torch.set_num_threads(1)  # So small that threads would only wait for each other.
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=8192,
        initializer_range=0.15,
    )
    return LlamaForCausalLM(config).eval()


def arguments(folder: Path, model: LlamaForCausalLM, **changes: Any) -> SimpleNamespace:
    """``TorchLlmArgs``, as far as it is read."""
    (folder / "config.json").write_text(json.dumps(model.config.to_dict(), default=str))
    cache = {"enable_block_reuse": True, "enable_partial_reuse": False, "tokens_per_block": BLOCK, "dtype": "auto"}
    of_cache = {name: changes.pop(name) for name in [*changes] if name in cache or name == "host_cache_size"}
    said = {"model": str(folder), "dtype": "float32", "tensor_parallel_size": 1, "attn_backend": "TRTLLM", **changes}
    return SimpleNamespace(kv_cache_config=SimpleNamespace(**(cache | of_cache)), **said)


@dataclass(eq=False)
class PaperRequest:
    """``LlmRequest``."""

    request_id: int
    tokens: list[int]
    prompt_len: int
    max_new: int = 4
    lora_task_id: int | None = None
    cache_salt_id: int | None = None
    return_context_logits: bool = False
    context_current_position: int = 0
    context_chunk_size: int = 1 << 30
    state: Any = LlmRequestState.CONTEXT_INIT
    is_generation_only_request: bool = False
    is_dummy_request: bool = False
    kv_cache_retention_config: Any = None
    blocks: list[int] = field(default_factory=list)
    found: int = 0
    """Tokens that the engine's own tree had."""
    promised: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)
    is_over: bool = False

    @property
    def py_request_id(self) -> int:
        return self.request_id

    @property
    def context_remaining_length(self) -> int:
        return self.prompt_len - self.context_current_position

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return list(self.tokens)

    @property
    def answer(self) -> list[int]:
        return self.tokens[self.prompt_len :]


class SaltedRequest(PaperRequest):
    """Of 1.3 and later, which tell the salt itself."""

    cache_salt: str | None = None


@dataclass
class Batch:
    """``ScheduledRequests``."""

    context_requests_chunking: list[PaperRequest]
    context_requests_last_chunk: list[PaperRequest]
    generation_requests: list[PaperRequest]

    @property
    def context_requests(self) -> list[PaperRequest]:
        return self.context_requests_chunking + self.context_requests_last_chunk

    @context_requests.setter
    def context_requests(self, requests: list[PaperRequest]) -> None:
        self.context_requests_chunking, self.context_requests_last_chunk = [], requests


class PaperEngine:
    def __init__(
        self,
        api: Api,
        model: LlamaForCausalLM,
        llm_args: Any,
        *,
        blocks: int = 400,
        layout: str = "HND",
        chunk: int = 0,
    ) -> None:
        self.model, self._layout, self._chunk, self.api = model, layout, chunk, api
        config = model.config
        self._heads, self._dim, self.layers = config.num_key_value_heads, config.head_dim, config.num_hidden_layers
        self.pool = torch.full((blocks, self.layers, 2, BLOCK * self._heads * self._dim), float("nan"))
        self.scheduler, self.worker = api.scheduler(llm_args), api.worker(llm_args)
        self.manager = api.manager(self.worker, self.scheduler)
        self.worker.register_kv_caches(self.pool)
        if hasattr(self.manager, "wait_for_initialization"):
            self.manager.wait_for_initialization()
        self._free = list(range(blocks))
        self._users = dict.fromkeys(range(blocks), 0)
        self._tree: dict[Any, int] = {}
        """Blocks by salt, adapter and all tokens up to their end: the least recently used first."""
        self.waiting: list[PaperRequest] = []
        self.running: list[PaperRequest] = []
        self._next_id = 1
        self.at: dict[str, Any] = {}
        """What to call at a point of a step, for tests: ``allocated``, ``built``, ``loaded``."""

    # --- What a client does ------------------------------------------------------------------------------------------

    def add(self, prompt: list[int], *, salt: str | None = None, lora: int | None = None, **more: Any) -> PaperRequest:
        made = SaltedRequest if self.api.has_salt else PaperRequest
        number = None if salt is None else hash(("salt", salt)) & (2**64 - 1)
        request = made(self._next_id, list(prompt), len(prompt), lora_task_id=lora, cache_salt_id=number, **more)
        if isinstance(request, SaltedRequest):
            request.cache_salt, request.cache_salt_id = salt, None
        self._next_id += 1
        self.waiting.append(request)
        return request

    def serve(self, prompt: list[int], **more: Any) -> PaperRequest:
        request = self.add(prompt, **more)
        while not request.is_over:
            self.step()
        return request

    def abort(self, request: PaperRequest, *, told: bool = True) -> None:
        """``told``: some releases tell a connector of every end, others only of those that finish in a batch."""
        request.is_over = True
        if request in self.waiting:
            self.waiting.remove(request)
            return
        if request in self.running:
            self.running.remove(request)
        if told:
            self.manager.request_finished(request, self.get_cache_indices(request))
        self._release(request, keep=False)

    def forget_cache(self) -> None:
        """The tree lets go of all blocks that nobody uses."""
        for key, block in list(self._tree.items()):
            if not self._users[block]:
                del self._tree[key]
                self._free.append(block)

    def forget_number(self, request: PaperRequest) -> None:
        """What the manager remembers of a request whose allocation died."""
        told = getattr(self.manager, "scheduler_output_manager", None)
        (self.manager._told if told is None else told.requests).pop(request.request_id)

    def settle(self) -> None:
        """Return when copies of prompts have ended, and a step has told of them."""
        half = self.worker.half
        if half is not None and half.side is not None:
            half.side.flush()
        self.manager.get_finished()

    def close(self) -> None:
        self.worker.shutdown()
        self.scheduler.shutdown()

    # --- A step, in TensorRT-LLM's order -----------------------------------------------------------------------------

    def step(self) -> None:
        new, self.waiting = self.waiting, []
        for request in new:
            self._add_sequence(request)
        for request in new:
            self.manager.update_state_after_alloc(request, self.get_cache_indices(request))
        self._call("allocated")
        self.running += [request for request in new if not request.is_over]
        batch = self._schedule()
        self.manager.build_scheduler_output(batch, self)
        self.manager.take_scheduled_requests_pending_load(batch)
        self.manager.handle_metadata()
        self._call("built")
        self.worker.start_load_kv(None)
        self._call("loaded")
        requests = [request for request in batch.context_requests + batch.generation_requests if not request.is_over]
        if requests:
            logits = [self._forward(request) for request in requests]
            self.worker.wait_for_save(None)
            for request, answer in zip(requests, logits, strict=True):
                self._update(request, answer)
        self.manager.get_finished()

    def _call(self, point: str) -> None:
        call = self.at.pop(point, None)
        if call is not None:
            call()

    def _add_sequence(self, request: PaperRequest) -> None:
        keys = self._keys(request)
        whole = (request.prompt_len - 1) // BLOCK
        for key in keys[:whole]:
            if key not in self._tree:
                break
            self._tree[key] = self._tree.pop(key)
            request.blocks.append(self._tree[key])
            self._users[self._tree[key]] += 1
        request.found = len(request.blocks) * BLOCK
        while len(request.blocks) < -(-request.prompt_len // BLOCK):
            request.blocks.append(self._allocate())
        request.promised = self.manager.get_num_new_matched_tokens(request, request.found)
        total = request.found + request.promised
        assert total < request.prompt_len, "TLLM_CHECK: prepopulatedPromptLen < promptLen"
        request.context_current_position = total

    def _schedule(self) -> Batch:
        context = [each for each in self.running if each.state is LlmRequestState.CONTEXT_INIT]
        for request in context:
            request.context_chunk_size = self._chunk or request.context_remaining_length
        last = [each for each in context if each.context_chunk_size >= each.context_remaining_length]
        generating = [each for each in self.running if each.state is LlmRequestState.GENERATION_IN_PROGRESS]
        for request in generating:
            if len(request.tokens) > len(request.blocks) * BLOCK:
                request.blocks.append(self._allocate())
        return Batch([each for each in context if each not in last], last, generating)

    def _forward(self, request: PaperRequest) -> torch.Tensor:
        start, end = self._range(request)
        cache = DynamicCache()
        for layer in range(self.layers):
            self.worker.wait_for_layer_load(layer, None)
            if start:
                cache.update(*self.read(request, start, layer), layer)
            self.worker.save_kv_layer(layer, None)
        with torch.no_grad():
            tokens = torch.tensor([request.tokens[start:end]])
            logits = self.model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
        positions = torch.arange(start, end)
        places = torch.tensor(request.blocks)[positions // BLOCK], positions % BLOCK
        for layer, held in enumerate(cache.layers):
            for part, values in enumerate((held.keys, held.values)):
                self._pages(layer, part)[places] = values[0, :, start:end].transpose(0, 1)
        return logits

    def _range(self, request: PaperRequest) -> tuple[int, int]:
        if request.state is LlmRequestState.CONTEXT_INIT:
            start = request.context_current_position
            return start, start + min(request.context_chunk_size, request.context_remaining_length)
        return len(request.tokens) - 1, len(request.tokens)

    def _update(self, request: PaperRequest, logits: torch.Tensor) -> None:
        if request.state is LlmRequestState.CONTEXT_INIT:
            request.context_current_position = self._range(request)[1]
            if request.context_remaining_length:
                return
            request.state = LlmRequestState.GENERATION_IN_PROGRESS
            self._store(request)
        request.logits.append(logits)
        request.tokens.append(int(logits.argmax()))
        if len(request.answer) >= request.max_new:
            request.state, request.is_over = LlmRequestState.GENERATION_COMPLETE, True
            self.running.remove(request)
            self.manager.request_finished(request, self.get_cache_indices(request))
            self._release(request, keep=True)

    # --- Blocks ------------------------------------------------------------------------------------------------------

    def get_cache_indices(self, request: PaperRequest) -> list[int]:
        return list(request.blocks)

    def commit_and_get_block_hashes(self, request: PaperRequest) -> list[int]:
        return [hash(key) for key in self._keys(request)]

    def get_priority_by_block_id(self, block: int) -> int:
        return 35

    @property
    def pages(self) -> torch.Tensor:
        """[blocks, layers, 2, tokens, heads, dim]"""
        if self._layout == "NHD":
            return self.pool.view(*self.pool.shape[:3], BLOCK, self._heads, self._dim)
        return self.pool.view(*self.pool.shape[:3], self._heads, BLOCK, self._dim).transpose(3, 4)

    def _pages(self, layer: int, part: int) -> torch.Tensor:
        return self.pages[:, layer, part]

    def read(self, request: PaperRequest, tokens: int, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [1, heads, tokens, dim] of its first tokens."""
        keys, values = (self._pages(layer, part)[request.blocks].flatten(0, 1)[:tokens] for part in (0, 1))
        return keys.transpose(0, 1)[None], values.transpose(0, 1)[None]

    def cold(self, tokens: list[int], last: int = 1) -> tuple[torch.Tensor, DynamicCache]:
        """Logits [last, vocabulary] of the last of these tokens, and the KV of all, computed without any cache."""
        cache = DynamicCache()
        with torch.no_grad():
            found = self.model(torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=last)
        return found.logits[0], cache

    def same_as_cold(self, request: PaperRequest) -> None:
        """Every step's logits are those of the same tokens computed without any cache."""
        cold, _ = self.cold(request.tokens[:-1], last=len(request.logits))
        torch.testing.assert_close(torch.stack(request.logits), cold, atol=1e-4, rtol=1e-4)
        assert cold.argmax(1).tolist() == request.answer

    def _keys(self, request: PaperRequest) -> list[Any]:
        identity = (getattr(request, "cache_salt", None), request.cache_salt_id, request.lora_task_id)
        computed = request.tokens[: len(request.tokens) - 1] if request.answer else request.tokens
        return [(identity, tuple(computed[:end])) for end in range(BLOCK, len(computed) + 1, BLOCK)]

    def _store(self, request: PaperRequest) -> None:
        """Into the exact tree, whoever has written them: this is why a connector must load nothing approximate."""
        for key, block in zip(self._keys(request), request.blocks, strict=False):
            self._tree.setdefault(key, block)

    def _release(self, request: PaperRequest, *, keep: bool) -> None:
        if keep:
            self._store(request)
        held = set(self._tree.values())
        for block in request.blocks:
            self._users[block] -= 1
            if not self._users[block] and block not in held:
                self._free.append(block)

    def _allocate(self) -> int:
        if not self._free:
            key = next(key for key, block in self._tree.items() if not self._users[block])
            self._free.append(self._tree.pop(key))
        block = self._free.pop(0)
        self._users[block] += 1
        self.pool[block] = float("nan")
        return block
