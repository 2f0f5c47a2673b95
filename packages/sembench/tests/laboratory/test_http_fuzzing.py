"""schemathesis makes requests from the API's own description, right ones and wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import positive_data_acceptance

from sembench.laboratory.config import CacheSettings
from sembench.laboratory.http import application, create_app


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("fuzzed")
    app = create_app(folder, CacheSettings(cache_token_budget=2000, policies=["lru", "lfu"]))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experiments are cut to a few requests and draw no figures: there are many."""
    run, write = application.run_experiment, application.write_run
    monkeypatch.setattr(
        application, "run_experiment", lambda config: run(config.model_copy(update={"seeds": 1, "requests": 3}))
    )
    monkeypatch.setattr(application, "write_run", lambda result, folder: write(result, folder, plots=False))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/health"),
        ("POST", "/v1/simulate/request"),
        ("POST", "/v1/experiments/run"),
        ("GET", "/v1/cache/state"),
        ("GET", "/v1/metrics/summary"),
        ("GET", "/v1/traces/latest"),
        ("GET", "/v1/experiments"),
        ("GET", "/v1/experiments/runs/{run}/{name}"),
    ],
)
def test_every_answer_is_one_that_the_description_promises(api: Any, method: str, path: str) -> None:
    operation = api[path][method]

    @settings(max_examples=10, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def right_ones(case: Any) -> None:
        # What is right by the schema may still hold no text, or name a policy that there is not.
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def wrong_ones(case: Any) -> None:
        case.call_and_validate()

    right_ones()
    if operation.body or operation.query:
        wrong_ones()


def test_every_route_is_among_them(api: Any) -> None:
    assert len(list(api.get_all_operations())) == 8
