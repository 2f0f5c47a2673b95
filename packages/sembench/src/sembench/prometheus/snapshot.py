"""One scrape of a metrics endpoint, kept as it was."""

from __future__ import annotations

import math
import time
from typing import Literal

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict

from sembench.identity import now
from sembench.schema import InputError

REFUSED = 3


class Sample(BaseModel):
    """One series and its value; None where the engine wrote NaN or an infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    labels: dict[str, str]
    type: str
    """counter, gauge, histogram, summary or unknown, as the exposition declares the family."""
    value: float | None


class EngineSnapshot(BaseModel):
    """All series of one endpoint at one moment."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal["sembench.engine-snapshot.v1"] = "sembench.engine-snapshot.v1"
    url: str
    taken_at: str
    """UTC, ISO 8601."""
    time: float
    """Unix seconds."""
    samples: list[Sample]


def take_snapshot(url: str, timeout_s: float = 10.0) -> EngineSnapshot:
    """Scrape ``url``. Raises InputError with exit code 3 where it does not answer with metrics."""
    try:
        response = httpx.get(url, timeout=timeout_s, follow_redirects=True, headers={"Accept": "text/plain"})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(f"--url {url}: {error or type(error).__name__}; is the engine up?", REFUSED) from None
    if response.status_code != 200:
        hint = "; metrics may have to be switched on" if response.status_code == 404 else ""
        raise InputError(f"--url {url}: answered with status {response.status_code}{hint}", REFUSED)
    samples = parse_metrics(response.text, f"--url {url}")
    return EngineSnapshot(url=url, taken_at=now(), time=time.time(), samples=samples)


def parse_metrics(text: str, where: str) -> list[Sample]:
    """The series of a Prometheus text exposition, in its order."""
    samples: list[Sample] = []
    try:
        for family in text_string_to_metric_families(text):
            for name, labels, value, *_ in family.samples:
                known = float(value) if math.isfinite(value) else None
                samples.append(Sample(name=name, labels=labels, type=family.type, value=known))
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise InputError(f"{where}: not a Prometheus text exposition: {error}", REFUSED) from None
    if not samples:
        raise InputError(f"{where}: holds no metrics; is it the /metrics address?", REFUSED)
    return samples
