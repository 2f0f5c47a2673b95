"""The judge's endpoint: any server that speaks OpenAI's chat completions."""

from __future__ import annotations

import time
from collections.abc import Sequence

import httpx

from sembench.exit_codes import REFUSED_OUTSIDE
from sembench.judge.questions import Message
from sembench.live.config import clean_url
from sembench.schema import InputError

API_KEY_VARIABLE = "SEMBENCH_JUDGE_API_KEY"
_RETRIED = (408, 409, 425, 429, 500, 502, 503, 504)


class JudgeFailedError(Exception):
    """A question that got no reply; the message says why."""


class JudgeClient:
    """Asks one question at a time; safe to share between threads."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 120.0,
        retries: int = 2,
        pause_s: float = 1.0,
        max_tokens: int = 512,
    ) -> None:
        self.url = clean_url("--judge-url", url)
        self.model = model
        self._retries, self._pause_s, self._max_tokens = retries, pause_s, max_tokens
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(headers=headers, timeout=timeout_s)

    @property
    def identity(self) -> dict[str, object]:
        """What its opinions depend on."""
        return {"model": self.model, "url": self.url, "max_tokens": self._max_tokens}

    def close(self) -> None:
        self._http.close()

    def ask(self, messages: Sequence[Message]) -> str:
        """The reply's text. Raises ``JudgeFailedError`` after the last retry."""
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(self._pause_s * 2 ** (attempt - 1))
            try:
                return self._once(messages)
            except _PassingError as error:
                last = error
        raise JudgeFailedError(str(last))

    def check(self) -> None:
        """One question before the work begins: a judge that is not there is refused with exit code 3."""
        try:
            self.ask([{"role": "user", "content": "Reply with the word ready."}])
        except JudgeFailedError as error:
            raise InputError(f"--judge-url {self.url}: {error}", REFUSED_OUTSIDE) from None

    def _once(self, messages: Sequence[Message]) -> str:
        body = {"model": self.model, "messages": list(messages), "temperature": 0, "max_tokens": self._max_tokens}
        try:
            response = self._http.post(f"{self.url}/v1/chat/completions", json=body)
        except httpx.HTTPError as error:
            raise _PassingError(f"{type(error).__name__}: {error}") from None
        if response.status_code in _RETRIED:
            raise _PassingError(f"status {response.status_code}: {response.text[:200]}")
        if not response.is_success:
            raise JudgeFailedError(f"status {response.status_code}: {response.text[:200]}")
        try:
            content = response.json()["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            raise JudgeFailedError("the reply is no chat completion") from None
        # A reply of reasoning alone has no content: it is a reply, and there is nothing in it to read.
        return content if isinstance(content, str) else ""


class _PassingError(Exception):
    """What may be gone at the next try."""
