"""What must hold on a GPU before any time is measured; exits with an error where it does not.

    VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/correctness.py CONFIG_DIR

Layer-0 K of a request with reuse equals the cold run's; a prompt that is reused in its own place answers as cold; what
was reused is in no exact cache; a load that fails ends in a cold answer, also with asynchronous scheduling.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from _engine_under_test import Engine, add_engine_options, asking

from semblend_core.testing.benchmarks import Material, Prompts, checked, deliver, options_of

SIZE, ANSWER = 4096, 8
HEADER = 16
"""Tokens that begin a composed prompt and were computed in their place."""
ROUNDING = 0.01
"""Relative error that bfloat16 leaves in K of layer 0."""


def one_of(material: Material) -> tuple[list[list[int]], list[int]]:
    return material.donors, material.recipient()


class Checks:
    def __init__(self, options: argparse.Namespace) -> None:
        self.prompts = Prompts.for_model(options.model, options.text, options.seed)
        self.engine = Engine(options)
        core = self.engine.llm.llm_engine.engine_core.engine_core
        self.connector, self.scheduler = core.scheduler.connector, core.scheduler
        self.blocks: dict[str, list[int]] = {}
        self._watch_blocks()
        self.found: dict[str, Any] = {"runner": "V2" if self.scheduler.use_v2_model_runner else "V1"}
        self.donate([self.prompts.fresh(SIZE)], "first")  # The self-test needs one prompt to look at.

    @property
    def worker(self) -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().worker_side

    def ask(self, tokens: list[int], salt: str, wish: Any = "on") -> Any:
        prompt = {"prompt_token_ids": tokens, "cache_salt": salt}
        return self.engine.llm.generate([prompt], asking(ANSWER, wish), use_tqdm=False)[0]

    def donate(self, donors: list[list[int]], salt: str) -> None:
        for donor in donors:
            self.ask(donor, salt)
        self.engine.settle()

    def first_layer_keys(self) -> None:
        for name, make in (("new_instruction", self.prompts.new_instruction), ("composite", self.prompts.composite)):
            donors, recipient = one_of(make(SIZE))
            self.donate(donors, name)
            keys, cached = {}, {}
            for arm, wish in (("reuse", "on"), ("cold", "off")):
                output = self.ask(recipient, name if arm == "reuse" else f"{name}, cold", wish)
                blocks = self.blocks[output.request_id.split("-")[0]]
                keys[arm] = self.worker._memory.gather(blocks, SIZE).keys[0].float()
                cached[arm] = output.num_cached_tokens
            self.hold(
                f"{name}: reuse took {cached['reuse']} tokens, {cached['cold']} when cold",
                cached["reuse"] > SIZE / 2 > cached["cold"],
            )
            error = ((keys["reuse"] - keys["cold"]).norm() / keys["cold"].norm()).item()
            self.hold(f"{name}: layer-0 K differs by {error:.5f}", error < ROUNDING)

    def identity(self) -> None:
        prompt = self.prompts.fresh(SIZE)
        self.donate([prompt], "identity")
        cold = self.ask(prompt, "identity, cold", "off")
        self.scheduler.kv_cache_manager.block_pool.reset_prefix_cache()  # Of vLLM's own cache alone.
        again = self.ask(prompt, "identity")
        self.hold(
            f"identity: {again.num_cached_tokens} tokens came from the store", again.num_cached_tokens > SIZE * 0.9
        )
        same = list(again.outputs[0].token_ids) == list(cold.outputs[0].token_ids)
        self.hold("identity: a prompt in its own place answers as cold", same)

    def pollution(self) -> None:
        donors, recipient = one_of(self.prompts.reorder(SIZE))
        self.donate(donors, "pollution")
        reused = self.ask(recipient, "pollution")
        probe = self.ask(recipient, "pollution", "off")
        self.hold(f"pollution: reuse took {reused.num_cached_tokens} tokens", reused.num_cached_tokens > SIZE * 0.5)
        # The prompt begins with tokens that were computed, in their place: those are exact.
        self.hold(f"pollution: {probe.num_cached_tokens} tokens afterwards", probe.num_cached_tokens <= HEADER)

    def failed_load(self) -> None:
        donors, recipient = one_of(self.prompts.new_instruction(SIZE))
        self.donate(donors, "failed")
        cold = self.ask(recipient, "failed, cold", "off")
        store = self.worker._store
        acquire, store.acquire = store.acquire, lambda *_: None
        failed = self.ask(recipient, "failed")
        store.acquire = acquire
        same = list(failed.outputs[0].token_ids) == list(cold.outputs[0].token_ids)
        self.hold(f"failed load: {failed.outputs[0].token_ids} as cold {cold.outputs[0].token_ids}", same)
        self.hold("failed load: counted", self.connector.scheduler_side.provider.stats().declines["donor_evicted"] > 0)

    def hold(self, what: str, does: bool) -> None:
        print(("holds  " if does else "FAILS  ") + what, flush=True)
        self.found[what] = does

    def _watch_blocks(self) -> None:
        """A request's blocks as it finishes: while it is computed in pieces they grow."""

        def watched(inner: Callable[..., Any]) -> Callable[..., Any]:
            def told(request: Any, block_ids: list[int]) -> Any:
                self.blocks[request.request_id.split("-")[0]] = list(block_ids)
                return inner(request, block_ids)

            return told

        self.connector.request_finished = watched(self.connector.request_finished)


def main() -> None:
    options = options_of(__doc__, add_engine_options, why_not=partial(checked.why_too_long, SIZE + ANSWER))
    os.environ.setdefault("SEMBLEND_COST_GATE", "0")  # What is reused is looked at, whether it pays or not.
    with torch.inference_mode():
        checks = Checks(options)
        for check in (checks.first_layer_keys, checks.identity, checks.pollution, checks.failed_load):
            check()
    deliver(checks.found, options)
    sys.exit(not all(held for held in checks.found.values() if isinstance(held, bool)))


if __name__ == "__main__":
    main()
