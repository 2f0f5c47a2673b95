"""What somebody who comes from other integrations writes, in a real engine: their call, and a provider of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from running_engine import COMPLETE, RunningEngine, cached
from sglang.srt.server_args import ServerArgs

from semblend_core.testing import records_so_far, wait_until
from semblend_sglang import patch_radix_cache

PASSAGE = " ".join(f"Shelf {number} holds {number * 7 % 50} boxes of bolts." for number in range(40))


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("theirs") / "audit.jsonl"


@pytest.fixture(scope="module")
def running(shallow_folder: Path, audit: Path) -> Iterator[RunningEngine]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SEMBLEND_AUDIT_PATH", str(audit))
        environment.setenv("SEMBLEND_SGLANG_PROVIDER", "first_prompt:FirstPrompt")
        environment.setattr(ServerArgs, COMPLETE, getattr(ServerArgs, COMPLETE))  # As it was, afterwards.
        assert patch_radix_cache()
        engine = RunningEngine(shallow_folder, audit, backend=None)
        yield engine
        engine.close()


@pytest.mark.exhaustive
def test_patched_the_engine_asks_their_provider_and_its_aliases_are_no_reuse(
    running: RunningEngine, audit: Path
) -> None:
    running.ask(f"Read this. {PASSAGE}", salt="theirs", tokens=1)
    answer = running.ask(f"Look at that. {PASSAGE}", salt="theirs", tokens=1)
    assert cached(answer) > 200, "nothing was taken"

    def told() -> list[dict[str, object]]:
        return [record for record in records_so_far(audit) if record["event"] in ("alias", "materialized")]

    wait_until(lambda: bool(told()), "an alias on record")
    (record,) = told()
    assert record["event"] == "alias"
    assert record["tokens"] == cached(answer)
