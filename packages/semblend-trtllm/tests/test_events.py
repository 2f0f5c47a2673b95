"""What the engine tells of its tree, as routers hear it; and what SemBlend tells, as SemBench reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from paper_engine import PaperEngine

from semblend_core.testing import passage
from semblend_trtllm.events import Announcements


def stored(event_id: int, *blocks: tuple[int, list[int]], parent: int | None = None, salt: str | None = None) -> Any:
    said = [
        {
            "type": "stored_block",
            "block_hash": key,
            "tokens": [{"token_id": token} for token in ids],
            "cache_salt": salt,
        }
        for key, ids in blocks
    ]
    return {"event_id": event_id, "data": {"type": "stored", "parent_hash": parent, "blocks": said}}


def test_whole_blocks_are_told_of_and_their_end() -> None:
    router = mock.Mock()
    told = Announcements(router, block_size=2)
    told.pass_on(
        [
            {"event_id": 0, "data": {"type": "created", "num_blocks_per_cache_level": [4, 0]}},
            stored(1, (2**63 + 5, [1, 2]), (7, [3, 4]), (8, [5]), parent=2**64 - 1),
            {"event_id": 2, "data": {"type": "updated", "block_hash": 7}},
            {"event_id": 3, "data": {"type": "removed", "block_hashes": [7, 8]}},
        ]
    )
    router.publish_stored.assert_called_once_with(1, [1, 2, 3, 4], [2, 2], [5 - 2**63, 7], 0, -1)
    router.publish_removed.assert_called_once_with(3, [7])


def test_salted_blocks_are_not_told_of() -> None:
    """A router that goes by token ids alone would send other tenants there."""
    router = mock.Mock()
    told = Announcements(router, block_size=2)
    told.pass_on(
        [stored(1, (7, [1, 2]), salt="tenant"), {"event_id": 2, "data": {"type": "removed", "block_hashes": [7]}}]
    )
    router.publish_stored.assert_not_called()
    router.publish_removed.assert_not_called()


def test_sembench_reads_the_audit_stream(make_engine: Callable[..., PaperEngine], tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    engine = make_engine(audit_path=str(audit))
    document = passage(2, 400)
    engine.serve(document)
    engine.settle()
    engine.forget_cache()
    loaded = engine.serve(document + passage(3, 40))
    engine.serve(passage(4, 80) + document)
    engine.settle()
    engine.scheduler.side.close()
    summary = tmp_path / "summary.json"
    asked = ["summarize-engine-events", "--engine", "trtllm", "--input", str(audit), "--output", str(summary)]
    subprocess.run([sys.executable, "-m", "sembench", *asked], check=True)
    found = json.loads(summary.read_text())
    assert found["unparsed_lines"] == 0
    assert (found["materialization_events"], found["materialized_tokens"]) == (1, loaded.promised)
    assert (found["loads_advertised"], found["advertised_tokens"]) == (1, loaded.promised)
    assert found["declined"]["exact_only"] == 1
    assert found["donors_registered"] == 2
