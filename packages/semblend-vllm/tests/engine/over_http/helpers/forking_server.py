"""vLLM's OpenAI server, whose other processes are forked from it.

On a CPU vLLM spawns them: its engine and its worker then import all of vLLM once more, which takes longer than most of
what tests ask. On GPUs either happens.
"""

from __future__ import annotations

import multiprocessing
import runpy
from types import SimpleNamespace

from vllm.utils import system_utils

if __name__ == "__main__":
    # Here vLLM looks up its way of starting processes, by a name that vLLM itself sets.
    system_utils.multiprocessing = SimpleNamespace(get_context=lambda _: multiprocessing.get_context("fork"))
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
