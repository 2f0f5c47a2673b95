"""SemBench's published commands in their order, against a server with SemBlend in it: what adapters' tests inherit.

A test class that inherits ``PublishedSequence`` needs a fixture ``served`` of its module, and SemBench installed. The
server must write its audit stream to its own log (``SEMBLEND_AUDIT_PATH=/dev/stdout``) and share by salt
(``SEMBLEND_SHARING=salted``).
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_TRANSFORMS = (
    "instruction_variant same_evidence_new_task rag_reorder multi_donor_composite fuzzy_edit leading_evidence_new_task "
    "negative_control"
)
_GATES = (
    "--min-quality-pass-rate 0.80 --min-backend-confirmed-block-rate 0.05 --min-materialization-events 1 "
    "--min-materialized-tokens 512 --max-negative-control-confirmed-rate 0.0 --require-materialized-reuse "
    "--require-no-engine-errors"
)
_KUBECTL = """#!{python}
# kubectl logs of a pod whose log is a file: every line behind its time, as Kubernetes writes them.
import sys
wanted = ["logs", "engine-0", "--namespace=inference", "--timestamps", "--since-time=2026-06-22T18:00:00Z"]
missing = [word for word in wanted if word not in sys.argv]
if missing:
    sys.exit(f"error: not asked for {{missing}}")
with open({log!r}, "rb") as log:
    log.seek({start})  # where the log was at --since-time
    for line in log:
        sys.stdout.buffer.write(b"2026-11-16T12:00:00.123456789Z " + line)
"""


_RECORD = '{"schema":"semblend.audit.v1"'


@dataclass(frozen=True)
class LiveServer:
    """A running server, and what differs between engines."""

    engine: str
    """``vllm`` or ``sglang``: whose log it is."""
    url: str
    model: str
    tokenizer: str
    log: Path
    """All that the server writes to stdout and stderr."""
    replay: str
    """The published replay command with its address, such as ``run-live-gateway --gateway-url URL``."""
    store_ms: int = 0
    """How long donors take to be stored."""


@dataclass
class Ended:
    code: int
    said: str


class Sequence:
    """A working folder in which commands are typed."""

    def __init__(self, served: LiveServer, folder: Path) -> None:
        self.served = served
        self.folder = folder
        (folder / "results").mkdir()
        self.start = served.log.stat().st_size
        """How much the server had written before: what happened at its start is not of these runs."""

    def type(self, words: str, expected: int | None = 0) -> Ended:
        done = subprocess.run(
            [sys.executable, "-m", "sembench", *shlex.split(words)],
            cwd=self.folder,
            env={**os.environ, "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        said = done.stdout + done.stderr
        assert expected is None or done.returncode == expected, said
        return Ended(done.returncode, said)

    def build(self, answers: list[str]) -> None:
        """One document whose accepted answers are given."""
        _write_document(self.folder / "longbench" / "qasper.jsonl", answers)
        self.type(
            "build --profile longbench-v1 --source longbench --datasets qasper --max-items-per-dataset 10 "
            f"--transforms {_TRANSFORMS} --max-segments 4 --min-segment-chars 400 --output manifests/replay.jsonl"
        )

    def replay(self, name: str, manifest: str = "manifests/replay.jsonl", more: str = "") -> Any:
        """As published, and cheaper: answers of a few words, and no warm-up where nothing is timed."""
        served = self.served
        more = more or f"--post-donor-delay-ms {served.store_ms}"
        self.type(
            f"{served.replay} --manifest {manifest} --output results/{name}.json --model {served.model} --max-items 20 "
            f"--max-output-tokens 8 --warmup-requests 0 {more}"
        )
        return self.read(name)

    def collect(self, name: str) -> None:
        """The pod's log up to now, through kubectl."""
        kubectl = self.folder / "bin" / "kubectl"
        kubectl.parent.mkdir(exist_ok=True)
        kubectl.write_text(_KUBECTL.format(python=sys.executable, log=str(self.served.log), start=self.start))
        kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
        self.type(
            f"collect-k8s-engine-events --engine {self.served.engine} --namespace inference --pod engine-0 "
            f"--since-time 2026-06-22T18:00:00Z --output-log results/{name}.log "
            f"--output-summary results/{name}-events.json"
        )

    def read(self, name: str) -> Any:
        return json.loads((self.folder / "results" / f"{name}.json").read_text())

    def judge(self, result: str, *summaries: str) -> Ended:
        named = " ".join(f"--engine-summary results/{each}-events.json" for each in summaries)
        return self.type(f"assert-result-gates --result results/{result}.json {named} {_GATES}", expected=None)


class PublishedSequence:
    """Every command that the published README names, with its flags, and what must make the last of them refuse."""

    @pytest.fixture(scope="class")
    @classmethod
    def sequence(cls, served: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Sequence:
        """All runs against the server; the tests read what they left."""
        typed = Sequence(served, tmp_path_factory.mktemp("published"))
        typed.build(answers=["not known yet"])
        typed.type(
            "run-offline --manifest manifests/replay.jsonl --output results/offline.json --block-size 16 "
            f"--tokenizer {served.tokenizer}"
        )
        # Without a tenant there is no salt, and nothing is shared: so a model answers that reuses nothing.
        cold = typed.replay("off", more="--tenant '' --post-donor-delay-ms 0")
        typed.collect("off")
        typed.build(answers=[record["output"] for record in cold["requests"]])
        typed.replay("good")
        typed.replay("polluted", manifest=_pollute(typed.folder))
        typed.collect("good")
        return typed

    def test_a_good_run_passes_every_published_gate(self, sequence: Sequence) -> None:
        ended = sequence.judge("good", "good")
        assert ended.code == 0, ended.said
        assert f"{sequence.served.engine} summary of good.log" in ended.said

    def test_the_audit_stream_tells_the_same_numbers_as_the_pods_log(self, sequence: Sequence) -> None:
        """The stream is cut out of what kubectl delivered, by other means than SemBench's."""
        stream = sequence.folder / "results/audit.jsonl"
        logged = (sequence.folder / "results/good.log").read_text().splitlines()
        lines = [line[line.index(_RECORD) :] for line in logged if _RECORD in line]
        stream.write_text("\n".join(lines) + "\n")
        sequence.type(f"summarize-engine-events --engine semblend --input {stream} --output results/audit-events.json")
        one, other = sequence.read("audit-events"), sequence.read("good-events")
        assert other["materialized_tokens"] > 0
        for name in one.keys() - {"engine", "inputs", "lines", "extra"}:
            assert one[name] == other[name], name
        ended = sequence.judge("good", "audit", "good")
        assert ended.code == 0, ended.said

    def test_the_servers_own_log_is_summarized_as_it_is(self, sequence: Sequence) -> None:
        served, log = sequence.served, sequence.folder / "results/server.log"
        log.write_bytes(served.log.read_bytes()[sequence.start :])
        sequence.type(
            f"summarize-engine-events --engine {served.engine} --input {log} --output results/log-events.json"
        )
        ended = sequence.judge("good", "log")
        assert ended.code == 0, ended.said

    def test_reuse_that_was_off_is_refused(self, sequence: Sequence) -> None:
        ended = sequence.judge("off", "off")
        assert ended.code == 1
        assert "--require-materialized-reuse: FAIL" in ended.said
        assert "declined: no_salt 7" in ended.said

    def test_a_polluted_control_is_refused(self, sequence: Sequence) -> None:
        ended = sequence.judge("polluted", "good")
        assert ended.code == 1
        assert "--max-negative-control-confirmed-rate: FAIL: wanted <= 0, found" in ended.said

    def test_a_missing_summary_is_refused(self, sequence: Sequence) -> None:
        for ended in (sequence.judge("good"), sequence.judge("good", "absent")):
            assert ended.code == 1
            assert "no backend event covers a request" in ended.said

    def test_a_log_of_another_run_is_refused(self, sequence: Sequence) -> None:
        ended = sequence.judge("good", "off")
        assert ended.code == 1
        assert "of another run" in ended.said

    def test_summaries_that_contradict_each_other_are_refused(self, sequence: Sequence) -> None:
        summary = sequence.read("good-events")
        for request in summary["requests"].values():
            request["confirmed_tokens"] = (request["confirmed_tokens"] or 0) + 16
        (sequence.folder / "results/other-events.json").write_text(json.dumps(summary))
        ended = sequence.judge("good", "good", "other")
        assert ended.code == 1
        assert "sources agree: FAIL" in ended.said


def _pollute(folder: Path) -> str:
    """A manifest of one control whose donor holds the control's own document."""
    items: list[dict[str, Any]] = [json.loads(line) for line in (folder / "manifests/replay.jsonl").open()]
    control = next(item for item in items if item["negative_control"])
    control["donor_prompts"][0]["text"] = f"An earlier reader's copy.\n\n{control['recipient_prompt']}"
    (folder / "manifests/polluted.jsonl").write_text(json.dumps(control, sort_keys=True) + "\n")
    return "manifests/polluted.jsonl"


def _write_document(path: Path, answers: list[str]) -> None:
    """A row in LongBench's form. Its sentences are all different, so that a span can only be where it belongs."""
    path.parent.mkdir(exist_ok=True)
    sentences = [
        f"In part {part} the crew of dock {part * 31 % 97} loaded {part * 53 % 89} crates of {_GOODS[part % 10]} "
        f"before {part + 1} o'clock."
        for part in range(28)
    ]
    context = "\n\n".join(" ".join(sentences[at : at + 7]) for at in range(0, 28, 7))
    row = {
        "input": "What did the crew load in part 3?",
        "context": context,
        "answers": answers,
        "length": len(context.split()),
        "dataset": "qasper",
        "language": "en",
        "all_classes": None,
        "_id": "qasper-0",
    }
    path.write_text(json.dumps(row) + "\n")


_GOODS = ["wool", "tin", "salt", "oak", "tea", "rope", "glass", "flour", "brass", "silk"]
