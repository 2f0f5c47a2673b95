"""How long a grid will take, from a few requests to the server, and how much of it is left while it runs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sembench.exit_codes import REFUSED_OUTSIDE
from sembench.live.config import LiveArm, LiveConfig, open_client
from sembench.live.endpoint import Endpoint, Reply, ServerRequest
from sembench.live.preflight import unknown_text
from sembench.live.replay import check_servers, open_servers
from sembench.live.streaming import RequestFailedError
from sembench.schema import InputError, ManifestItem, RequestRecord
from sembench.terminal import ProgressBars

_LONGEST_SAMPLE = 4_000
"""Tokens: the estimate should not take as long as what it is about."""
_OUTPUT_TOKENS = 8


@dataclass(frozen=True)
class ServingCosts:
    """Seconds of a request: so much for each prompt token, for each pair of them, and for each output token."""

    per_token: float
    per_token_squared: float
    per_output_token: float

    def prefill(self, tokens: float) -> float:
        return self.per_token * tokens + self.per_token_squared * tokens * tokens

    def arm(self, item: ManifestItem, arm: LiveArm, config: LiveConfig) -> float:
        """With nothing reused: how much is reused is what the run is to find out. Exact repeats are."""
        tokens = int(item.metadata.get("estimated_tokens", 0))
        answer = self.per_output_token * config.max_output_tokens
        if arm in ("exact", "probe"):
            return answer
        if arm == "cold":
            return self.prefill(tokens) + answer
        donors = sum(self.prefill(int(donor.metadata.get("estimated_tokens", 0))) for donor in item.donor_prompts)
        return donors + config.post_donor_delay_ms / 1000 + self.prefill(tokens) + answer

    def all_of(self, items: Sequence[ManifestItem], config: LiveConfig) -> float:
        return sum(self.arm(item, arm, config) for item in items for arm in config.arms)


async def measure_costs(config: LiveConfig, longest_tokens: int, api_key: str | None) -> ServingCosts:
    """Refuses, with exit code 3, a server that a replay would refuse."""
    async with open_client(api_key, 1) as client:
        servers = open_servers(config, client)
        await check_servers(config, servers)
        long = min(longest_tokens, _LONGEST_SAMPLE)
        try:
            await _sample(servers.recipients, long // 4)  # The first of a length may be compiled for.
            short, longer = [await _sample(servers.recipients, tokens) for tokens in (long // 2, long)]
        except RequestFailedError as error:
            raise InputError(f"{config.url}: the requests for the estimate failed: {error}", REFUSED_OUTSIDE) from None
    return fit_costs(short, longer)


async def _sample(endpoint: Endpoint, words: int) -> Reply:
    nonce = secrets.token_hex(8)
    name = f"sb-warmup-{nonce}"
    return await endpoint.ask(ServerRequest(unknown_text(nonce, words), name, name, _OUTPUT_TOKENS))


def fit_costs(short: Reply, longer: Reply) -> ServingCosts:
    """Through the two times and zero. Noise may bend the curve down; prefill never gets cheaper with length."""
    first, second = _prefill_s(short), _prefill_s(longer)
    n, m = short.prompt_tokens or 1, longer.prompt_tokens or 2
    squared = max(0.0, (second / m - first / n) / (m - n)) if m > n else 0.0
    per_token = max(0.0, second / m - squared * m)
    outputs = max(1, (longer.output_tokens or _OUTPUT_TOKENS) - 1)
    return ServingCosts(per_token, squared, max(0.0, longer.latency_ms / 1000 - second) / outputs)


def _prefill_s(reply: Reply) -> float:
    return (reply.latency_ms if reply.ttft_ms is None else reply.ttft_ms) / 1000


class TimeLeft:
    """Shows how far a run is, with the time left by its own pace: long prompts take most of it."""

    def __init__(
        self, bars: ProgressBars, items: Sequence[ManifestItem], config: LiveConfig, costs: ServingCosts
    ) -> None:
        self._bars = bars
        self._expected: dict[tuple[str, str], float] = {
            (item.item_id, arm): costs.arm(item, arm, config) for item in items for arm in config.arms
        }
        self._left = sum(self._expected.values())
        self._done = self._failed = 0
        self._served_s = self._served_expected_s = 0.0
        self._told = 0

    def __call__(self, record: RequestRecord) -> None:
        self._done += 1
        self._failed += record.status == "error"
        expected = self._expected[(record.item_id, record.arm)]
        self._left -= expected
        if record.latency_ms is not None and record.arm == "cold":
            # The cold arm alone: others hold donors, whose time no record has, or reuse.
            self._served_s += record.latency_ms / 1000
            self._served_expected_s += expected
        total = len(self._expected)
        words = f"about {duration(self.left_s)} left" + (f", {self._failed} failed" if self._failed else "")
        self._bars.show("serving", self._done, total, words)
        if self._done * 20 // total > self._told:
            self._told = self._done * 20 // total
            self._bars.log(f"{self._done} of {total} requests, {words}")

    @property
    def left_s(self) -> float:
        pace = self._served_s / self._served_expected_s if self._served_expected_s else 1.0
        return max(0.0, self._left) * pace


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
