from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from sembench.laboratory.workloads import WORKLOADS, generate

_DIGEST = """
import hashlib, sys
from sembench.laboratory.workloads import generate
print(hashlib.sha256(repr(generate(sys.argv[1], 40, 7)).encode()).hexdigest())
"""


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_as_many_requests_as_asked_for_in_order_of_time(name: str) -> None:
    requests = generate(name, 57, 1)
    assert len(requests) == 57
    times = [request.at_s for request in requests]
    assert times == sorted(times)
    assert all(tokens > 0 for request in requests for tokens in request.tokens)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_draws_other_requests(name: str) -> None:
    assert generate(name, 30, 1) == generate(name, 30, 1)
    assert generate(name, 30, 1) != generate(name, 30, 2)


def test_the_same_seed_draws_the_same_in_another_process() -> None:
    ours = hashlib.sha256(repr(generate("tool_agent_session_reuse", 40, 7)).encode()).hexdigest()
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    command = [sys.executable, "-c", _DIGEST, "tool_agent_session_reuse"]
    theirs = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert theirs.stdout.strip() == ours


def test_span_workloads_have_the_same_text_at_different_places() -> None:
    for name in ("multi_agent", "code_assistant"):
        places: dict[int, set[int]] = {}
        for request in generate(name, 100, 0):
            for place, key in enumerate(request.keys):
                places.setdefault(key, set()).add(place)
        assert sum(len(found) > 1 for found in places.values()) > 10
