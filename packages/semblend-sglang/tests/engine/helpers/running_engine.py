"""A real engine through SGLang's Python API, of whichever release the tests run in."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from kv_on_record import BLIND
from sglang.srt.server_args import ServerArgs

from semblend_core.testing import divergence as by_top_tokens
from semblend_core.testing import records_so_far, wait_until

COMPLETE = "resolve_once" if hasattr(ServerArgs, "resolve_once") else "__post_init__"
"""Where SGLang completes its arguments, which ``patch_radix_cache`` wraps."""


@dataclass(frozen=True)
class Recorded:
    folder: Path

    def request(self) -> dict[str, Any]:
        """Of the one request that reused something. Keys and values are [layers, tokens, heads, dim]."""
        (file,) = self.folder.glob("*.pt")
        found: dict[str, Any] = torch.load(file)
        return found

    def scores(self) -> torch.Tensor:
        """What its probe has shown."""
        found: torch.Tensor = torch.load(self.folder / "scores")
        return found


class RunningEngine:
    def __init__(
        self,
        model_folder: Path,
        audit: Path,
        kv: Path | None = None,
        backend: str | None = "semblend",
        **options: Any,
    ) -> None:
        """``kv``: the folder that ``kv_on_record`` was told of. ``options``: arguments of SGLang's besides."""
        import sglang

        self._audit, self._kv = audit, kv
        self._asked = 0
        """Requests whose end must come to be on record."""
        self.engine = sglang.Engine(
            **{
                "model_path": str(model_folder),
                "device": "cpu",
                "dtype": "float32",
                "attention_backend": "torch_native",
                "sampling_backend": "pytorch",
                "grammar_backend": "none",
                "disable_cuda_graph": True,
                "max_total_tokens": 12_288,
                "context_length": 2048,
                "max_running_requests": 16,
                "radix_cache_backend": backend,
                "log_level": "error",
                **options,
            }
        )
        self._takes_salt = "cache_salt" in inspect.signature(self.engine.generate).parameters

    def ask(
        self,
        prompts: str | list[str],
        *,
        salt: str,
        wish: Any = "on",
        tokens: int = 8,
        logprobs_from: int = -1,
        **more: Any,
    ) -> Any:
        """One answer per prompt, with the top 20 of each step. ``more``: as SGLang takes it, such as images."""
        sampling = {
            "max_new_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "custom_params": {"semblend": wish},
        }
        several = isinstance(prompts, list)
        self._asked += (len(prompts) if several else 1) * (wish != "off")
        return self._generate(
            salt=[salt] * len(prompts) if several else salt,
            sampling_params=[sampling] * len(prompts) if several else sampling,
            return_logprob=True,
            logprob_start_len=[logprobs_from] * len(prompts) if several else logprobs_from,
            top_logprobs_num=[20] * len(prompts) if several else 20,
            prompt=prompts,
            **more,
        )

    def search(self, prompt: str, *, salt: str, beams: int, tokens: int = 8) -> Any:
        """The best answer by beam search."""
        self._asked += 1
        sampling = {"max_new_tokens": tokens, "beam_width": beams, "ignore_eos": True}
        return self._generate(salt=salt, sampling_params=sampling, prompt=prompt)

    def confirmed(self) -> int:
        """Tokens that were reused so far, by the audit stream."""
        return sum(record["tokens"] for record in self._records() if record["event"] == "materialized")

    def declines(self) -> list[str]:
        return [record["reason"] for record in self._records() if record["event"] == "declined"]

    @contextmanager
    def recording(self, *, blind: bool = False) -> Iterator[Recorded]:
        """What is asked meanwhile leaves its KV on record. ``blind``: probes show nothing meanwhile."""
        assert self._kv is not None
        self._kv.mkdir()
        if blind:
            (self._kv / BLIND).touch()
        try:
            yield Recorded(self._kv)
        finally:
            shutil.rmtree(self._kv)

    def let_scheduler_idle(self) -> None:
        """Its loop goes round for each question it answers, and idles where there is nothing else to do."""
        for _ in range(4):
            self.engine.get_server_info()

    def close(self) -> None:
        self.engine.shutdown()

    def _generate(self, *, salt: Any, prompt: Any, **arguments: Any) -> Any:
        if self._takes_salt:
            return self.engine.generate(prompt=prompt, cache_salt=salt, **arguments)
        # 0.5.17 knows a key beside the tokens too, but its Python API does not pass one on.
        from sglang.srt.managers.io_struct import GenerateReqInput

        request = GenerateReqInput(text=prompt, extra_key=salt, **arguments)
        answers = self.engine.tokenizer_manager.generate_request(request, None)
        return self.engine.loop.run_until_complete(anext(answers))

    def _records(self) -> Any:
        """The stream is written in the background."""
        wait_until(lambda: len(ended(records_so_far(self._audit))) >= self._asked, "the end of every request")
        return records_so_far(self._audit)


def ended(records: Any) -> set[str]:
    """The requests whose end is on record. One that SGLang's own cache serves ends with its lookup."""
    return {
        record["request_id"]
        for record in records
        if record["event"] in ("materialized", "declined") or record.get("reason") == "exact_prefix_covers"
    }


def cached(answer: Any) -> int:
    return int(answer["meta_info"]["cached_tokens"])


def divergence(cold: Any, other: Any) -> float:
    """Of two answers."""
    return by_top_tokens(*map(_top_tokens, (cold, other)))


def _top_tokens(answer: Any) -> list[dict[int, float]]:
    return [{token: value for value, token, _ in step} for step in answer["meta_info"]["output_top_logprobs"]]
