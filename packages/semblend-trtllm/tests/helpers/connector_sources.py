"""TensorRT-LLM's own connector module, of a checkout or installed; and one of ours where there is neither.

Nothing of TensorRT-LLM is copied here: a checkout's file is executed where it lies, and what it imports of the engine's
compiled part is stood in for by a dozen names.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from semblend_trtllm.compat import HOMES, version_of

NEW_HOME, OLD_HOME = HOMES
OURS = ("semblend_trtllm.connector",)


class LlmRequestState(Enum):
    CONTEXT_INIT = 1
    GENERATION_IN_PROGRESS = 2
    DISAGG_GENERATION_TRANS_IN_PROGRESS = 3
    DISAGG_CONTEXT_TRANS_IN_PROGRESS = 4
    GENERATION_COMPLETE = 5


@dataclass(frozen=True)
class Api:
    """One generation of the connector API, with our connector on it."""

    version: str
    has_salt: bool
    """Whether a request tells its salt, or only the number that is made of it."""
    manager: Any
    """``KvCacheConnectorManager``, the class."""
    scheduler: Any
    worker: Any


SetModule = Callable[[str, types.ModuleType], None]


def load(checkout: Path | None, set_module: SetModule) -> Api:
    """The connector API of a checkout, or (None) our own stand-in for it. ``set_module`` puts a module in place."""
    for name in [*sys.modules]:
        if name.partition(".")[0] == "tensorrt_llm" or name in OURS:
            del sys.modules[name]
    if checkout is None:
        import own_connector_api

        version, home, module = "1.3.0", NEW_HOME, own_connector_api
        _stub(set_module, version, home)
        set_module(home, module)
    else:
        version = str(version_of(checkout))
        home = next(each for each in HOMES if _file(checkout, each).is_file())
        _stub(set_module, version, home)
        found = importlib.util.spec_from_file_location(home, _file(checkout, home))
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        set_module(home, module)
        found.loader.exec_module(module)
    ours = importlib.import_module(OURS[0])
    set_module(OURS[0], ours)
    return Api(
        version,
        home == NEW_HOME,
        module.KvCacheConnectorManager,
        ours.SemBlendConnectorScheduler,
        ours.SemBlendConnectorWorker,
    )


def _file(checkout: Path, home: str) -> Path:
    return checkout / (home.replace(".", "/") + ".py")


def _stub(set_module: SetModule, version: str, home: str) -> None:
    def module(name: str, **names: Any) -> None:
        made = types.ModuleType(name)
        made.__path__ = []
        made.__dict__.update(names)
        set_module(name, made)

    class CompiledManager:
        def __init__(self) -> None:
            """Compiled code: it only holds the place of a base class."""

    silent = types.SimpleNamespace(warning=print, info=print, error=print, warning_once=print)
    module("tensorrt_llm", __version__=version)
    module(
        "tensorrt_llm._utils",
        mpi_allgather=lambda each: [each],
        mpi_broadcast=lambda each, root=0: each,
        mpi_rank=lambda: 0,
    )
    module("tensorrt_llm.logger", logger=silent)
    module("tensorrt_llm.bindings", LlmRequestState=LlmRequestState)
    module("tensorrt_llm.bindings.internal")
    module(
        "tensorrt_llm.bindings.internal.batch_manager",
        KvCacheConnectorManager=CompiledManager,
        LlmRequest=type("LlmRequest", (), {}),
    )
    module("tensorrt_llm.llmapi")
    module("tensorrt_llm.llmapi.llm_args", TorchLlmArgs=type("TorchLlmArgs", (), {}))
    module("tensorrt_llm._torch")
    module("tensorrt_llm._torch.pyexecutor")
    module("tensorrt_llm._torch.pyexecutor.scheduler", ScheduledRequests=type("ScheduledRequests", (), {}))
    module("tensorrt_llm._torch.pyexecutor.llm_request", get_draft_token_length=lambda request: 0)
    if home == NEW_HOME:
        module("tensorrt_llm._torch.pyexecutor.connectors")
