"""A run that was killed goes on and ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from sembench.identity import identify
from sembench.partial import PartialHeader, PartialRun, holds_work
from sembench.schema import InputError

TIMES = {"ttft_ms", "latency_ms"}
CHOSEN_AT_RANDOM = {"request_id"}


def deterministic(result):
    return [record.model_dump(exclude=TIMES | CHOSEN_AT_RANDOM) for record in result.requests]


def command(stub, manifest, output, *more):
    common = ["--manifest", str(manifest), "--output", str(output), "--gateway-url", stub.url, "--model", "tiny"]
    return [sys.executable, "-m", "sembench", "run-live-gateway", *common, "--paired", "--exact", *more]


def records_in(partial):
    return partial.read_text().count('"record"') if partial.exists() else 0


def kill_after(process, stub, partial, records):
    """The server answers nothing more from then on, so the run cannot end before it is killed."""
    killed = threading.Event()
    stub.on_request = lambda seen, cached: records_in(partial) >= records and killed.wait()
    while records_in(partial) < records:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    stub.on_request = lambda seen, cached: None
    killed.set()


def test_a_run_killed_twice_ends_as_an_uninterrupted_one(stub, write_manifest, tmp_path, read_result):
    manifest = write_manifest(6)
    subprocess.run(command(stub, manifest, tmp_path / "result.json"), check=True, capture_output=True)
    whole = read_result()
    served_whole = len(stub.served)
    stub.cache.clear()

    output, partial = tmp_path / "killed.json", tmp_path / "killed.json.partial.jsonl"
    for records, resume in ((4, ()), (10, ("--resume",))):
        process = subprocess.Popen(
            command(stub, manifest, output, *resume), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        kill_after(process, stub, partial, records)
        assert not output.exists()
    subprocess.run(command(stub, manifest, output, "--resume"), check=True, capture_output=True)
    output.rename(tmp_path / "result.json")
    resumed = read_result()

    assert deterministic(resumed) == deterministic(whole)
    assert resumed.aggregate == whole.aggregate
    assert resumed.paired.clean_pairs == whole.paired.clean_pairs == 6
    assert resumed.paired.dropped == whole.paired.dropped
    assert resumed.config["resumed"] == 2
    assert {k: v for k, v in resumed.config.items() if k != "resumed"} == {
        k: v for k, v in whole.config.items() if k != "resumed"
    }
    assert not partial.exists()
    # Finished items were not served again: at most one item was under way at each kill.
    assert len(stub.served) - served_whole < served_whole + 2 * 4


@pytest.fixture
def stopped(stub, gateway_run, tmp_path):
    """A run of twelve items that the server's failure stopped after two, and the path of what it left."""
    stub.fault = lambda seen, number: "400" if number >= 4 else None
    assert gateway_run(items=12).exit_code == 3
    stub.fault = lambda seen, number: None
    return tmp_path / "result.json.partial.jsonl"


def test_a_leftover_is_neither_taken_up_nor_dropped_without_being_told(stopped, gateway_run):
    before = stopped.read_bytes()
    done = gateway_run(items=12)
    assert done.exit_code == 2
    assert "--resume" in done.output
    assert "--overwrite" in done.output
    assert stopped.read_bytes() == before


def test_overwrite_starts_anew(stopped, stub, gateway_run, read_result):
    sent = len(stub.served)
    assert gateway_run("--overwrite", items=12).exit_code == 0
    assert len(stub.served) - sent == 24
    assert read_result().config["resumed"] == 0


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--max-output-tokens", 32), "config max_output_tokens: was 64, is 32"),
        (("--paired",), "config paired: was False, is True"),
        (("--max-items", 3), "config max_items: was None, is 3"),
    ],
)
def test_another_configuration_is_refused_by_name(stopped, gateway_run, words, names):
    done = gateway_run("--resume", *words, items=12)
    assert done.exit_code == 2
    assert names in done.output


def test_another_manifest_is_refused(stopped, gateway_run):
    done = gateway_run("--resume", items=11)
    assert done.exit_code == 2
    assert "manifest sha256: was " in done.output


def test_a_server_of_another_version_is_refused(stopped, start_stub, stub, gateway_run):
    text = stopped.read_text()
    stopped.write_text(text.replace('"version":"1.2.3"', '"version":"1.2.2"'))
    done = gateway_run("--resume", items=12)
    assert done.exit_code == 2
    assert "server version: was '1.2.2', is '1.2.3'" in done.output


def test_a_line_that_the_kill_tore_is_forgotten(stopped, stub, gateway_run, read_result):
    lines = stopped.read_bytes().splitlines(keepends=True)
    stopped.write_bytes(b"".join(lines[:2]) + lines[2][: len(lines[2]) // 2])
    sent = len(stub.served)
    stub.fault = lambda seen, number: "400" if number >= sent + 2 else None
    assert gateway_run("--resume", items=12).exit_code == 3, "stopped again, behind the torn line"
    stub.fault = lambda seen, number: None
    sent = len(stub.served)
    assert gateway_run("--resume", items=12).exit_code == 0
    assert len(stub.served) - sent == 20, "one record was whole before the tear, one came after it"
    assert len(read_result().requests) == 12


@pytest.mark.parametrize("damage", ["", "{}\n", "[1]\n", "no json\n", '{"schema_version": "other"}\n'])
def test_a_leftover_that_cannot_be_read_is_named(stopped, gateway_run, damage):
    stopped.write_text(damage)
    done = gateway_run("--resume", items=12)
    assert done.exit_code == 2
    assert str(stopped) in done.output
    assert "delete the file" in done.output


def test_a_damaged_record_is_named_by_its_line(stopped, gateway_run):
    lines = stopped.read_text().splitlines()
    record = json.loads(lines[1])
    record["record"]["arm"] = "lukewarm"
    lines[1] = json.dumps(record)
    stopped.write_text("\n".join(lines) + "\n")
    done = gateway_run("--resume", items=12)
    assert done.exit_code == 2
    assert f"{stopped}:2" in done.output


def test_resume_without_a_leftover_starts_and_after_the_end_says_so(gateway_run):
    assert gateway_run("--resume").exit_code == 0
    done = gateway_run("--resume")
    assert done.exit_code == 2
    assert "is complete" in done.output


def test_a_run_under_way_keeps_others_off_what_it_writes(tmp_path):
    """Neither --resume nor --overwrite may take the file from it: their records would be mixed."""
    path = tmp_path / "result.json.partial.jsonl"
    header = PartialHeader(run=identify("live-gateway", None, 1), fixed={})
    running = PartialRun.begin(path, header)
    running.append({"record": 1})
    for take in (PartialRun.resume, PartialRun.begin):
        with pytest.raises(InputError, match="another run is writing it"):
            take(path, header)
    assert holds_work(path)
    running.close()
    taken_up = PartialRun.resume(path, header)
    assert [line.value for line in taken_up.lines] == [{"record": 1}]
    taken_up.remove()
    assert not path.exists()
    PartialRun.begin(path, header).remove()
