"""Trials on a running server, with log-probabilities of chosen tokens: vLLM or SGLang.

Trials are kept apart by salts of their own. Where the arm has none, the server is told to forget all KV before each.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from sembench.exit_codes import REFUSED_OUTSIDE
from sembench.live.config import REUSE_OFF
from sembench.privacy.arms import PrivacyArm
from sembench.privacy.trials import Question, Reading, Trial, check_first_tokens
from sembench.schema import InputError

ServerKind = Literal["vllm", "sglang"]
Body = dict[str, Any]


class _Dialect(ABC):
    """How one engine is asked, and how it answers."""

    path: str
    reset_path: str
    salt_field: str

    @abstractmethod
    def prompt(self, model: str, text: str, max_tokens: int) -> Body: ...

    @abstractmethod
    def asking(self, tokens: Sequence[int]) -> Body:
        """Fields that ask for the log-probabilities of ``tokens`` as the first of the answer."""

    @abstractmethod
    def switch_off(self, body: Body) -> None:
        """No reuse for this request."""

    @abstractmethod
    def reading(self, answer: Body, tokens: Sequence[int]) -> Reading: ...


class _Vllm(_Dialect):
    path = "/v1/completions"
    reset_path = "/reset_prefix_cache?reset_external=true"
    salt_field = "cache_salt"

    def prompt(self, model: str, text: str, max_tokens: int) -> Body:
        return {"model": model, "prompt": text, "max_tokens": max_tokens, "temperature": 0}

    def asking(self, tokens: Sequence[int]) -> Body:
        return {"logprobs": len(tokens), "logprob_token_ids": list(tokens), "return_tokens_as_token_ids": True}

    def switch_off(self, body: Body) -> None:
        body.update(REUSE_OFF)

    def reading(self, answer: Body, tokens: Sequence[int]) -> Reading:
        choice = answer["choices"][0]
        told = choice["logprobs"]["top_logprobs"][0]
        details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
        log_probs = tuple(float(told[f"token_id:{token}"]) for token in tokens)
        return Reading(log_probs, choice["text"], details.get("cached_tokens"))


class _Sglang(_Dialect):
    path = "/generate"
    reset_path = "/flush_cache"
    salt_field = "extra_key"

    def prompt(self, model: str, text: str, max_tokens: int) -> Body:
        return {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": max_tokens}}

    def asking(self, tokens: Sequence[int]) -> Body:
        return {"return_logprob": True, "token_ids_logprob": list(tokens)}

    def switch_off(self, body: Body) -> None:
        body["sampling_params"]["custom_params"] = REUSE_OFF["kv_transfer_params"]

    def reading(self, answer: Body, tokens: Sequence[int]) -> Reading:
        meta = answer["meta_info"]
        told = {token: log_prob for log_prob, token, *_ in meta["output_token_ids_logprobs"][0]}
        return Reading(tuple(float(told[token]) for token in tokens), answer["text"], meta.get("cached_tokens"))


_DIALECTS: Mapping[ServerKind, _Dialect] = {"vllm": _Vllm(), "sglang": _Sglang()}


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
            self._post(self._dialect.reset_path, {}, hint=" (vLLM needs VLLM_SERVER_DEV_MODE=1 for it)")
        self._post(self._dialect.path, self._body(trial.donor_of(arm), first, 1))
        time.sleep(self.settle_s)
        return self._ask(question, second, reuse=arm.reuse)

    @property
    def _dialect(self) -> _Dialect:
        return _DIALECTS[self.kind]

    def _ask(self, question: Question, salt: str | None, *, reuse: bool) -> Reading:
        tokens = self._tokens_of(question)
        body = self._body(question.prompt, salt, self.answer_tokens) | self._dialect.asking(tokens)
        if not reuse:
            self._dialect.switch_off(body)
        answer = self._post(self._dialect.path, body)
        try:
            return self._dialect.reading(answer, tokens)
        except (KeyError, IndexError, TypeError):
            told = f"{self._dialect.path}: the answer has no log-probabilities of the tokens asked for"
            raise InputError(f"{told}: {str(answer)[:300]}", REFUSED_OUTSIDE) from None

    def _body(self, text: str, salt: str | None, max_tokens: int) -> Body:
        body = self._dialect.prompt(self.model, text, max_tokens)
        return body if salt is None else body | {self._dialect.salt_field: salt}

    def _tokens_of(self, question: Question) -> list[int]:
        if question.candidates not in self._first_tokens:
            found = [self._first_token(candidate) for candidate in question.candidates]
            self._first_tokens[question.candidates] = check_first_tokens(question, found)
        return self._first_tokens[question.candidates]

    def _first_token(self, text: str) -> int:
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        return int(self._post("/tokenize", body)["tokens"][0])

    def _post(self, path: str, body: Body, hint: str = "") -> Body:
        try:
            response = self.client.post(path, json=body)
        except httpx.HTTPError as error:
            raise InputError(f"{self.client.base_url}{path}: {error}", REFUSED_OUTSIDE) from None
        if response.status_code != 200:
            raise InputError(f"{path}: {response.status_code}{hint}: {response.text[:300]}", REFUSED_OUTSIDE)
        try:
            answer = response.json()
        except ValueError:  # A reset answers with nothing, or with words.
            return {}
        return answer if isinstance(answer, dict) else {}
