"""A real vLLM in float32, in this process, with SemBlend switched on and the first layers of SmolLM2."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from semblend_vllm.compat.versions import installed_version

BLOCK = 32
"""What vLLM's attention on CPU wants a multiple of."""
LAYERS = int(os.environ.get("SEMBLEND_TEST_LAYERS", "5"))
"""Of SmolLM2, which has 30."""
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    # Times on a busy test machine are not what is tested; nor whether reuse pays with so small a model.
    "SEMBLEND_LOOKUP_BUDGET_MS": "600000",
    "SEMBLEND_COST_GATE": "0",
    "SEMBLEND_SHARING": "all",
    "SEMBLEND_CACHED_TOKENS": "exact",
    "SEMBLEND_COST_DIR": "none",
    # Answers are compared where a test asks for it.
    "SEMBLEND_QUALITY_SHARE": "0",
}


def pytest_report_header() -> str:
    return f"semblend-vllm's engine tests run in vLLM {installed_version() or 'that is not installed: they will fail'}"


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[dict[int, float], ...]
    prompt_tokens: int
    cached_tokens: int
    """What vLLM says it did not compute."""


class Engine:
    def __init__(self, **options: Any) -> None:
        from vllm import LLM
        from vllm.config import KVEventsConfig, KVTransferConfig

        from semblend_core.testing import shallow_model_folder

        settings, model = options.pop("settings", {}), options.pop("model", None)
        self.events_endpoint = f"inproc://semblend-events-{id(self)}"
        self.llm = LLM(
            model=str(model or shallow_model_folder(LAYERS)),
            dtype="float32",
            enforce_eager=True,
            block_size=BLOCK,
            scheduler_cls="semblend_vllm.SemBlendScheduler",
            kv_transfer_config=KVTransferConfig(
                kv_connector="SemBlendConnectorV1",
                kv_connector_module_path="semblend_vllm",
                kv_role="kv_both",
                kv_connector_extra_config=settings,
            ),
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, endpoint=self.events_endpoint),
            **{"max_model_len": 2048, "max_num_batched_tokens": 2048, "max_num_seqs": 16, **options},
        )
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.side = self.scheduler.connector.scheduler_side
        self.settings = self.scheduler.connector.settings

    @property
    def worker(self) -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().worker_side

    def ask(self, prompt: str, *, salt: str = "tenant", reuse: Any = "on", tokens: int = 8) -> Answer:
        return self.ask_all([prompt], salt=salt, reuse=reuse, tokens=tokens)[0]

    def ask_all(self, prompts: list[str], *, salt: str = "tenant", reuse: Any = "on", tokens: int = 8) -> list[Answer]:
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0,
            max_tokens=tokens,
            ignore_eos=True,
            logprobs=20,
            extra_args={"kv_transfer_params": {"semblend": reuse}},
        )
        asked = [{"prompt": prompt, "cache_salt": salt} for prompt in prompts]
        return [_answer(output) for output in self.llm.generate(asked, sampling, use_tqdm=False)]

    def settle(self) -> None:
        """Wait until what was captured can be found."""
        self.worker.flush()
        self.side.catch_up()

    def empty_own_cache(self) -> None:
        """vLLM's alone: what it holds would be taken first. A reset from outside would drop the donors too."""
        assert self.scheduler.kv_cache_manager.block_pool.reset_prefix_cache()

    def stats(self) -> Any:
        return self.side.provider.stats()

    def first_values(self, token_ids: Sequence[int]) -> Any:
        """V of layer 0 [tokens, heads, components], by the model's own weights: no token depends on another there."""
        import torch

        model = self.core.model_executor.driver_worker.worker.model_runner.model.model
        layer = model.layers[0]
        attention = layer.self_attn
        with torch.inference_mode():
            hidden = layer.input_layernorm(model.embed_tokens(torch.tensor(token_ids)))
            values = attention.qkv_proj(hidden)[0][:, -attention.kv_size :]
        return values.view(len(token_ids), -1, attention.head_dim)

    def check_integrity(self) -> None:
        """Nothing is left of requests that have ended."""
        self.settle()
        self.side.check_integrity()
        self.worker.check_integrity()
        assert len(self.side.requests) == 0
        assert self.stats().pinned_requests == 0
        assert not self.scheduler.requests


class Router:
    """Believes what it hears of an engine's blocks, as routers do: which tokens lie in them, and behind which."""

    def __init__(self) -> None:
        self.tokens: dict[Any, tuple[int, ...]] = {}
        """Of every block that it ever heard of, by its hash: its own and all that stand before them."""
        self.held: set[Any] = set()
        self.unknown_removals = 0

    def hear(self, events: Sequence[Any]) -> None:
        for event in events:
            kind = type(event).__name__
            if kind == "BlockStored":
                self._store(event)
            elif kind == "BlockRemoved":
                self.unknown_removals += len(set(event.block_hashes) - self.held)
                self.held.difference_update(event.block_hashes)
            else:
                self.held.clear()

    def longest_prefix(self, token_ids: Sequence[int]) -> int:
        held = (self.tokens[block_hash] for block_hash in self.held)
        return max((len(tokens) for tokens in held if tokens == tuple(token_ids[: len(tokens)])), default=0)

    def _store(self, event: Any) -> None:
        tokens = () if event.parent_block_hash is None else self.tokens[event.parent_block_hash]
        assert len(event.token_ids) == len(event.block_hashes) * event.block_size
        assert event.extra_keys is None or len(event.extra_keys) == len(event.block_hashes)
        for number, block_hash in enumerate(event.block_hashes):
            tokens += tuple(event.token_ids[number * event.block_size : (number + 1) * event.block_size])
            self.tokens[block_hash] = tokens
            self.held.add(block_hash)


def _answer(output: Any) -> Answer:
    done = output.outputs[0]
    return Answer(
        text=done.text,
        tokens=tuple(done.token_ids),
        logprobs=tuple({token: entry.logprob for token, entry in step.items()} for step in done.logprobs),
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens or 0,
    )


@pytest.fixture(scope="session")
def divergence() -> Callable[[Any, Any], float]:
    """Of two answers with ``logprobs``."""
    from semblend_core.testing import divergence as by_top_tokens

    return lambda cold, other: by_top_tokens(cold.logprobs, other.logprobs)


@pytest.fixture(scope="session")
def new_router() -> Callable[[], Router]:
    return Router


@pytest.fixture(scope="session", autouse=True)
def environment() -> None:
    os.environ.update({name: value for name, value in SETTINGS.items() if name not in os.environ})


@pytest.fixture(scope="session")
def new_engine(environment: None) -> Callable[..., Engine]:
    return Engine


@pytest.fixture(scope="session")
def engine(new_engine: Callable[..., Engine]) -> Engine:
    return new_engine(settings={"store_host_bytes": "512MiB"})
