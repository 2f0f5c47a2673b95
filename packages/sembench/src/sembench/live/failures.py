"""Why a request failed, and whether asking again can help."""

from __future__ import annotations

import httpx

_RETRYABLE_STATUS = 429
"""Besides everything from 500 up: the server asks to come back later."""
_QUOTED = 200


class RequestFailedError(Exception):
    """No answer that can be measured. The message is what the record will say."""

    def __init__(self, reason: str, *, retryable: bool, status: int | None = None) -> None:
        super().__init__(reason)
        self.retryable = retryable
        self.status = status
        """The HTTP status, where one came."""


def failure_of_response(response: httpx.Response) -> RequestFailedError:
    """For a response other than 200, whose body has been read."""
    said = " ".join(response.text.split())[:_QUOTED]
    return failure_of_status(response.status_code, said)


def failure_of_status(status: int, said: str) -> RequestFailedError:
    retryable = status >= 500 or status == _RETRYABLE_STATUS
    return RequestFailedError(f"HTTP {status}: {said or 'no message'}", retryable=retryable, status=status)


def failure_of_transport(error: httpx.HTTPError) -> RequestFailedError:
    """The connection was refused, broke, or was never answered."""
    return RequestFailedError(f"{type(error).__name__}: {error or 'no message'}", retryable=True)


def malformed(what: str) -> RequestFailedError:
    """The server speaks another protocol: it would do so again."""
    return RequestFailedError(f"malformed answer: {what[:_QUOTED]}", retryable=False)
