"""A run that was stopped goes on where it was, or says why it cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sembench.embedded.config import EmbeddedConfig
from sembench.embedded.replay import Replayer
from sembench.embedded.runner import run_embedded
from sembench.schema import InputError, ManifestItem, Result, read_json

TIMINGS = ("ttft_ms", "ttft_samples_ms", "latency_ms", "lookup_us")
QUALITY = ("kl_mean", "kl_max", "ppl_ratio", "top1")


def figures(result: Result) -> list[dict[str, Any]]:
    """All that must not depend on when and in how many pieces a run was made; quality apart from its last digits."""
    kept = []
    for record in result.requests:
        fields = record.model_dump(exclude=set(TIMINGS))
        for name in QUALITY:
            value = fields["quality"][name]
            fields["quality"][name] = None if value is None else round(value, 4)
        kept.append(fields)
    return kept


def config_for(model: Path, **options: Any) -> EmbeddedConfig:
    return EmbeddedConfig(model=str(model), repeats=1, continuation_tokens=16, **options)


class StoppedError(Exception):
    pass


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let a run fail, as by a lost machine, when it begins the item after so many."""
    replay = Replayer.replay

    def set_up(items: int) -> None:
        left = [items]

        def counting(self: Replayer, *args: Any) -> Any:
            if not left[0]:
                raise StoppedError
            left[0] -= 1
            return replay(self, *args)

        monkeypatch.setattr(Replayer, "replay", counting)

    return set_up


@pytest.fixture
def stopped(
    manifest: Path, tiny_model: Path, tmp_path: Path, stop_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The partial file of a run that ended after two items."""
    with monkeypatch.context():
        stop_after(2)
        with pytest.raises(StoppedError):
            run_embedded(manifest, tmp_path / "result.json", config_for(tiny_model))
    monkeypatch.undo()
    return tmp_path / "result.json.partial.jsonl"


def test_a_finished_run_leaves_no_partial_file(manifest: Path, tiny_model: Path, tmp_path: Path) -> None:
    run_embedded(manifest, tmp_path / "result.json", config_for(tiny_model))
    assert [path.name for path in tmp_path.glob("result*")] == ["result.json"]


def test_a_stopped_run_goes_on_and_does_not_repeat_what_is_done(
    manifest: Path, tiny_model: Path, tmp_path: Path, stopped: Path, stop_after: Callable[[int], None]
) -> None:
    assert not (tmp_path / "result.json").exists()
    whole = run_embedded(manifest, tmp_path / "whole.json", config_for(tiny_model))
    stop_after(3)  # Of the five items only the other three may be begun.
    resumed = run_embedded(manifest, tmp_path / "result.json", config_for(tiny_model), resume=True)
    assert figures(resumed) == figures(whole)
    assert resumed.paired is not None
    assert whole.paired is not None
    assert (resumed.paired.noise_floor or {})["n"] == (whole.paired.noise_floor or {})["n"] == 4
    assert not stopped.exists()


def test_a_torn_last_line_is_dropped(manifest: Path, tiny_model: Path, tmp_path: Path, stopped: Path) -> None:
    lines = stopped.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    stopped.write_bytes(b"".join(lines[:2]) + lines[2][:100])
    resumed = run_embedded(manifest, tmp_path / "result.json", config_for(tiny_model), resume=True)
    assert len({record.item_id for record in resumed.requests}) == 5


def test_a_file_without_a_whole_header_is_named(
    manifest: Path, tiny_model: Path, tmp_path: Path, stopped: Path
) -> None:
    stopped.write_bytes(stopped.read_bytes()[:40])
    with pytest.raises(InputError, match="holds no header; delete the file"):
        run_embedded(manifest, tmp_path / "result.json", config_for(tiny_model), resume=True)


def test_a_run_that_finished_nothing_leaves_nothing_to_ask_about(
    manifest: Path, tiny_model: Path, tmp_path: Path, stop_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(0)
    with pytest.raises(StoppedError):
        run_embedded(manifest, tmp_path / "result.json", config_for(tiny_model))
    monkeypatch.undo()
    result = run_embedded(manifest, tmp_path / "result.json", config_for(tiny_model))
    assert len({record.item_id for record in result.requests}) == 5


def test_it_is_not_overwritten_without_resume(manifest: Path, tiny_model: Path, tmp_path: Path, stopped: Path) -> None:
    before = stopped.read_bytes()
    with pytest.raises(InputError, match="--resume"):
        run_embedded(manifest, tmp_path / "result.json", config_for(tiny_model))
    assert stopped.read_bytes() == before


def test_other_options_are_refused_by_name(manifest: Path, tiny_model: Path, tmp_path: Path, stopped: Path) -> None:
    with pytest.raises(InputError, match="config tier: was 'balanced', is 'fast'"):
        run_embedded(manifest, tmp_path / "result.json", config_for(tiny_model, tier="fast"), resume=True)


def test_another_manifest_is_refused(manifest: Path, tiny_model: Path, tmp_path: Path, stopped: Path) -> None:
    manifest.write_text("".join(manifest.read_text().splitlines(keepends=True)[:4]))
    with pytest.raises(InputError, match="manifest sha256: was "):
        run_embedded(manifest, tmp_path / "result.json", config_for(tiny_model), resume=True)


def test_a_damaged_line_is_named(manifest: Path, tiny_model: Path, tmp_path: Path, stopped: Path) -> None:
    lines = stopped.read_text().splitlines(keepends=True)
    stopped.write_text(lines[0] + '{"item_id": 3}\n' + lines[2])
    with pytest.raises(InputError, match=r"partial\.jsonl:2:"):
        run_embedded(manifest, tmp_path / "result.json", config_for(tiny_model), resume=True)


def test_resume_without_anything_to_resume_is_a_run(manifest: Path, tiny_model: Path, tmp_path: Path) -> None:
    result = run_embedded(manifest, tmp_path / "result.json", config_for(tiny_model), resume=True)
    assert len({record.item_id for record in result.requests}) == 5


def test_a_run_stopped_by_sigkill_resumes_to_the_same_result(
    items: list[ManifestItem],
    tiny_model: Path,
    tmp_path: Path,
    write: Callable[[Path, Sequence[ManifestItem]], Path],
) -> None:
    many = [
        item.model_copy(update={"item_id": f"{number:02x}{item.item_id[2:]}"})
        for number in range(2)
        for item in items[:4]
    ]
    manifest = write(tmp_path / "many.jsonl", many)

    def command(output: str, *further: str) -> list[str]:
        options = ["--model", str(tiny_model), "--continuation-tokens", "8", "--repeats", "1", *further]
        paths = ["--manifest", str(manifest), "--output", str(tmp_path / output)]
        return [sys.executable, "-m", "sembench", "run-embedded", *paths, *options]

    partial = tmp_path / "killed.json.partial.jsonl"
    process = subprocess.Popen(command("killed.json"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (partial.exists() and partial.read_bytes().count(b"\n") >= 3):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it had ended before it could be killed"
    done = partial.read_bytes().count(b"\n") - 1
    assert 0 < done < len(many)
    assert not (tmp_path / "killed.json").exists()

    for name, further in (("killed.json", ["--resume"]), ("whole.json", [])):
        finished = subprocess.run(command(name, *further), capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
    killed, whole = (read_json(tmp_path / name, Result) for name in ("killed.json", "whole.json"))
    assert figures(killed) == figures(whole)
    assert json.loads((tmp_path / "killed.json").read_text())["schema_version"] == "sembench.result.v1"
    assert not partial.exists()
