"""A request whose worker died after it had begun: what is left of it can be asked of another worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semblend_dynamo.dynamo.requests import Preprocessed

_COUNTS = ("max_tokens", "min_tokens")


class StreamCutOffError(RuntimeError):
    """The answer ended without saying why it did."""


class Progress:
    """What has been answered so far."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.finished = False
        self._in_one_piece = True
        self._continued_from = 0

    def note(self, chunk: Any) -> None:
        if not isinstance(chunk, dict):
            self._in_one_piece = False
            return
        if chunk.get("index"):
            self._in_one_piece = False  # several answers at once
        self.tokens += chunk.get("token_ids") or ()
        self.finished = self.finished or chunk.get("finish_reason") is not None
        usage = chunk.get("completion_usage")
        if self._continued_from and isinstance(usage, dict):
            # The other worker counts what had been answered before as prompt.
            usage["prompt_tokens"] = max(0, usage.get("prompt_tokens", 0) - self._continued_from)
            usage["completion_tokens"] = usage.get("completion_tokens", 0) + self._continued_from

    def is_whole(self, request: Preprocessed) -> bool:
        """Nothing is missing, but perhaps the worker's word that the answer ended."""
        if not self._in_one_piece or _are_several(request.get("sampling_options") or {}):
            return False
        if self.finished:
            return True
        if (request.get("output_options") or {}).get("prompt_logprobs"):
            return False  # They may come with the last word.
        most = (request.get("stop_conditions") or {}).get("max_tokens")
        return most is not None and 0 < most <= len(self.tokens)

    def rest_of(self, request: Preprocessed) -> Preprocessed | None:
        """The request for what is still to be answered; None: it cannot be continued elsewhere."""
        stop = dict(request.get("stop_conditions") or {})
        sampling = request.get("sampling_options") or {}
        if (
            not self._in_one_piece
            or _are_several(sampling)
            or _is_guided(sampling)
            or (request.get("output_options") or {}).get("prompt_logprobs")
        ):
            return None
        for name in _COUNTS:
            if stop.get(name) is not None:
                stop[name] = stop[name] - len(self.tokens)
        if stop.get("max_tokens") is not None and stop["max_tokens"] < 1:
            return None
        if stop.get("min_tokens") is not None:
            stop["min_tokens"] = max(0, stop["min_tokens"])
        self._continued_from = len(self.tokens)
        return {**request, "token_ids": [*request["token_ids"], *self.tokens], "stop_conditions": stop}


def _are_several(sampling: Mapping[str, Any]) -> bool:
    """Several answers at once, of which the first may have been the only one to speak so far."""
    return (sampling.get("n") or 1) > 1


def _is_guided(sampling: Mapping[str, Any]) -> bool:
    """A grammar's state does not travel."""
    return bool(sampling.get("guided_decoding"))
