"""Trials on a running server: vLLM's ``/v1/completions`` or SGLang's ``/generate``, with log-probabilities.

Trials are kept apart by salts of their own. Where the arm has none, the server is told to forget all KV before each.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from sembench.live.config import REUSE_OFF
from sembench.privacy.arms import PrivacyArm
from sembench.privacy.trials import Question, Reading, Trial, check_first_tokens
from sembench.schema import InputError

REFUSED = 3
ServerKind = Literal["vllm", "sglang"]
_RESETS: Mapping[ServerKind, str] = {"vllm": "/reset_prefix_cache?reset_external=true", "sglang": "/flush_cache"}
_SGLANG_REUSE_OFF = {"sampling_params": {"custom_params": REUSE_OFF["kv_transfer_params"]}}


@dataclass
class ServerBench:
    client: httpx.Client
    """Its base URL is the server's."""
    kind: ServerKind
    model: str
    settle_s: float
    """After a donor: a server may keep KV in the background."""
    answer_tokens: int
    _first_tokens: dict[tuple[str, ...], list[int]] = field(default_factory=dict)

    def read_cold(self, question: Question) -> Reading:
        return self._ask(question, secrets.token_hex(8), reuse=False)

    def read(self, question: Question, trial: Trial, arm: PrivacyArm) -> Reading:
        first = None if arm.salts == "none" else secrets.token_hex(8)
        second = secrets.token_hex(8) if arm.salts == "separate" else first
        if first is None:
            self._post(_RESETS[self.kind], {}, hint=" (vLLM needs VLLM_SERVER_DEV_MODE=1 for it)")
        self._serve(trial.donor if arm.donors == "as_sent" else trial.document, first)
        time.sleep(self.settle_s)
        return self._ask(question, second, reuse=arm.reuse)

    def _serve(self, text: str, salt: str | None) -> None:
        if self.kind == "vllm":
            self._post("/v1/completions", self._vllm_body(text, salt, 1))
        else:
            self._post("/generate", self._sglang_body(text, salt, 1))

    def _ask(self, question: Question, salt: str | None, *, reuse: bool) -> Reading:
        tokens = self._tokens_of(question)
        if self.kind == "vllm":
            wanted = {"logprobs": len(tokens), "logprob_token_ids": tokens, "return_tokens_as_token_ids": True}
            body = (
                self._vllm_body(question.prompt, salt, self.answer_tokens) | wanted | ({} if reuse else dict(REUSE_OFF))
            )
            return _read_vllm(self._post("/v1/completions", body), tokens)
        body = self._sglang_body(question.prompt, salt, self.answer_tokens)
        body |= {"return_logprob": True, "token_ids_logprob": tokens}
        if not reuse:
            body["sampling_params"] |= _SGLANG_REUSE_OFF["sampling_params"]
        return _read_sglang(self._post("/generate", body), tokens)

    def _vllm_body(self, text: str, salt: str | None, tokens: int) -> dict[str, Any]:
        body = {"model": self.model, "prompt": text, "max_tokens": tokens, "temperature": 0}
        return body if salt is None else body | {"cache_salt": salt}

    def _sglang_body(self, text: str, salt: str | None, tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": tokens}}
        return body if salt is None else body | {"extra_key": salt}

    def _tokens_of(self, question: Question) -> list[int]:
        if question.candidates not in self._first_tokens:
            found = [self._first_token(candidate) for candidate in question.candidates]
            self._first_tokens[question.candidates] = check_first_tokens(question, found)
        return self._first_tokens[question.candidates]

    def _first_token(self, text: str) -> int:
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        return int(self._post("/tokenize", body)["tokens"][0])

    def _post(self, path: str, body: Mapping[str, Any], hint: str = "") -> dict[str, Any]:
        try:
            response = self.client.post(path, json=dict(body))
        except httpx.HTTPError as error:
            raise InputError(f"{self.client.base_url}{path}: {error}", REFUSED) from None
        if response.status_code != 200:
            raise InputError(f"{path}: {response.status_code}{hint}: {response.text[:300]}", REFUSED)
        try:
            answer = response.json()
        except ValueError:
            return {}
        return answer if isinstance(answer, dict) else {}


def _read_vllm(answer: dict[str, Any], tokens: Sequence[int]) -> Reading:
    choice = answer["choices"][0]
    told = choice["logprobs"]["top_logprobs"][0]
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    return Reading(
        tuple(float(told[f"token_id:{token}"]) for token in tokens), choice["text"], details.get("cached_tokens")
    )


def _read_sglang(answer: dict[str, Any], tokens: Sequence[int]) -> Reading:
    meta = answer["meta_info"]
    told = {token: log_prob for log_prob, token, *_ in meta["output_token_ids_logprobs"][0]}
    return Reading(tuple(float(told[token]) for token in tokens), answer["text"], meta.get("cached_tokens"))
