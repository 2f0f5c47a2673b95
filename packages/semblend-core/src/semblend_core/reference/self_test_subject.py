"""The reference engine as a subject of the per-model self-test."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from semblend_core.contract import Plan, TokenIds
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.rotation import Rotation
from semblend_core.kv.self_test import SelfTestIdentity
from semblend_core.reference.engine import ReferenceEngine
from semblend_core.reference.prefill import Prefill

_SAY_NOTHING_OF_THE_MODEL = {"_name_or_path", "transformers_version"}


class ReferenceSubject:
    """Runs the self-test's requests on a reference engine, through its own relocation."""

    span_alignment = 1

    def __init__(self, engine: ReferenceEngine, *, revision: str = "local") -> None:
        self.engine = engine
        self.revision = revision

    @property
    def identity(self) -> SelfTestIdentity:
        config = self.engine.model.config
        return SelfTestIdentity(
            engine="reference",
            engine_version=", ".join(map(_installed, ("transformers", "torch", "triton"))),
            model=str(config._name_or_path or type(self.engine.model).__name__),
            revision=f"{self.revision}, config {_config_digest(config)}",
            device=_device_name(self.engine.geometry.device),
            dtype=str(self.engine.geometry.dtype).removeprefix("torch."),
            kv_layout=f"tokens-heads-dim, up to {self.max_tokens} tokens",
        )

    @property
    def rotation(self) -> Rotation:
        return self.engine.rotation

    @property
    def vocabulary(self) -> int:
        return self.engine.vocabulary

    @property
    def max_tokens(self) -> int:
        return self.engine.max_tokens

    def prefill(self, token_ids: TokenIds) -> tuple[DonorKv, Tensor]:
        return self._answer(self.engine.prefill(token_ids, room=0))

    def prefill_with(self, token_ids: TokenIds, plan: Plan, donors: Mapping[str, DonorKv]) -> tuple[DonorKv, Tensor]:
        return self._answer(self.engine.sparse_prefill(token_ids, plan, donors, room=0))

    def _answer(self, prefill: Prefill) -> tuple[DonorKv, Tensor]:
        return self.engine.capture(prefill.workspace, prefill.token_ids.size, approximate=True), prefill.logits


def _config_digest(config: Any) -> str:
    def kept(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name not in _SAY_NOTHING_OF_THE_MODEL}

    fields = json.loads(config.to_json_string(use_diff=False), object_hook=kept)
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=8).hexdigest()


def _installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return device.type
