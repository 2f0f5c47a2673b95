"""The judge: its replies are read and not guessed, its faults counted, and no measured figure changes.

The endpoint is a stub: what is under test is the asking, the reading and the arithmetic, not an opinion.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Ended

from sembench.cli import main
from sembench.identity import identify
from sembench.judge.questions import read_score, read_vote
from sembench.results import build_result
from sembench.schema import DonorPrompt, ManifestItem, RequestRecord, Result, read_json

Answer = Callable[[str], "str | int"]


class Stub:
    """Chat completions whose text (or error status) the test computes from the question."""

    def __init__(self) -> None:
        self.answer: Answer = lambda question: '{"score": 5}'
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stub.requests.append({"path": self.path, **body})
                stub.keys.add(self.headers.get("Authorization"))
                told = stub.answer(body["messages"][-1]["content"])
                reply = {"choices": [{"message": {"role": "assistant", "content": told}}]}
                self.send_response(told if isinstance(told, int) else 200)
                self.end_headers()
                self.wfile.write(json.dumps(reply).encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setattr("sembench.judge.client.time.sleep", lambda seconds: None)
    stub = Stub()
    thread = threading.Thread(target=stub.server.serve_forever, args=(0.02,))
    thread.start()
    yield stub
    stub.server.shutdown()
    stub.server.server_close()
    thread.join()


def item(number: int) -> ManifestItem:
    return ManifestItem(
        item_id=f"{number:016x}",
        dataset="fixture",
        source_id=str(number),
        transform="instruction_variant",
        donor_prompts=(DonorPrompt(donor_id=f"{number + 50:016x}", text="Donor.", label="d"),),
        recipient_prompt=f"Evidence {number} with {{braces}}. Question?",
        input="Question?",
        answers=("yes",),
        negative_control=False,
    )


ITEMS = [item(number) for number in range(3)]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f"{each.model_dump_json()}\n" for each in ITEMS))
    return path


@pytest.fixture
def result(manifest: Path) -> Result:
    """Cold answers "cold 0" and so on, warm ones likewise; the last item's answers are the same text."""
    records = [
        RequestRecord(
            item_id=each.item_id,
            arm=arm,
            dataset="fixture",
            transform=each.transform,
            negative_control=False,
            ttft_ms=100.0,
            proved_cold=True if arm == "cold" else None,
            output="same" if each is ITEMS[-1] else f"{arm} {each.source_id}",
        )
        for each in ITEMS
        for arm in ("cold", "warm")
    ]
    return build_result(identify("live-gateway", manifest, len(ITEMS)), {}, ITEMS, records)


@pytest.fixture
def judge(result: Result, manifest: Path, stub: Stub, tmp_path: Path) -> Callable[..., tuple[Ended, Path]]:
    path = tmp_path / "r.json"
    path.write_text(result.model_dump_json())

    def run(*more: str, url: str = "") -> tuple[Ended, Path]:
        output = tmp_path / "judged.json"
        arguments = ["judge", "--result", str(path), "--manifest", str(manifest), "--judge-model", "j"]
        arguments += ["--judge-url", url or stub.url, "--output", str(output), *more]
        return CliRunner().invoke(main, arguments, prog_name="sembench"), output

    return run


def prefers_warm(question: str) -> str:
    """Scores warm answers 5 and cold ones 3, and finds the warm one better wherever it stands."""
    if "<answer_a>" not in question:
        return '{"score": 3}' if "<answer>\ncold" in question else 'Thus: {"score": 5}'
    return '{"better": "A"}' if "<answer_a>\nwarm" in question else '{"better": "B"}'


def test_opinions_stand_beside_the_figures_and_change_none(
    judge: Callable[..., tuple[Ended, Path]], stub: Stub, result: Result
) -> None:
    stub.answer = prefers_warm
    ended, output = judge()
    assert ended.exit_code == 0, ended.output
    judged = read_json(output, Result)
    told = judged.aggregate.judge
    assert told is not None
    assert told["faithfulness_cold"] == {"mean": pytest.approx(11 / 3), "n": 3}
    assert told["faithfulness_warm"] == {"mean": 5.0, "n": 3}
    assert told["faithfulness_warm_minus_cold"] == {"mean": pytest.approx(4 / 3), "n": 3}
    assert told["pairwise"] == {"warm": 2, "cold": 0, "tie": 0, "inconsistent": 0, "identical": 1, "n": 3}
    assert told["unreadable_replies"] == told["failed"] == 0
    for record in judged.requests:
        record.quality.judge = None
    judged.aggregate.judge = None
    assert judged == result


def test_each_pair_is_asked_in_both_orders_with_the_evidence_and_at_temperature_0(
    judge: Callable[..., tuple[Ended, Path]], stub: Stub
) -> None:
    stub.answer = prefers_warm
    assert judge()[0].exit_code == 0
    questions = [request["messages"][-1]["content"] for request in stub.requests]
    pairs = [question for question in questions if "<answer_a>" in question]
    assert sum("<answer_a>\ncold 0" in question for question in pairs) == 1
    assert sum("<answer_a>\nwarm 0" in question for question in pairs) == 1
    assert len(pairs) == 4, "identical answers need no comparison"
    assert all("Evidence 0 with {braces}" in question for question in pairs if " 0\n</answer_a>" in question)
    assert {(request["model"], request["temperature"]) for request in stub.requests} == {("j", 0)}
    assert {request["path"] for request in stub.requests} == {"/v1/chat/completions"}


def test_a_judge_that_goes_by_position_prefers_neither(judge: Callable[..., tuple[Ended, Path]], stub: Stub) -> None:
    stub.answer = lambda question: '{"better": "A"}' if "<answer_a>" in question else '{"score": 4}'
    ended, output = judge()
    assert ended.exit_code == 0, ended.output
    told = read_json(output, Result).aggregate.judge
    assert told is not None
    assert told["pairwise"] == {"warm": 0, "cold": 0, "tie": 0, "inconsistent": 2, "identical": 1, "n": 3}


def test_replies_that_cannot_be_read_are_counted_and_not_guessed(
    judge: Callable[..., tuple[Ended, Path]], stub: Stub
) -> None:
    stub.answer = lambda question: "I would give this a 4, and A is better."
    ended, output = judge()
    assert ended.exit_code == 0
    judged = read_json(output, Result)
    told = judged.aggregate.judge
    assert told is not None
    assert told["faithfulness_warm"] == {"mean": None, "n": 0}
    assert told["pairwise"]["n"] == 1, "the identical pair"
    assert told["unreadable_replies"] == told["asked"] == 9
    assert "9 replies not readable" in ended.stdout
    assert {(record.quality.judge or {}).get("faithfulness") for record in judged.requests} == {None}


def test_a_passing_fault_is_tried_again_and_a_lasting_one_counted(
    judge: Callable[..., tuple[Ended, Path]], stub: Stub
) -> None:
    seen: set[str] = set()

    def flaky(question: str) -> str | int:
        if "cold 0" in question and "<answer>" in question:
            return 400
        first = question not in seen
        seen.add(question)
        return 503 if first else prefers_warm(question)

    stub.answer = flaky
    ended, output = judge("--concurrency", "1")
    assert ended.exit_code == 0, ended.output
    told = read_json(output, Result).aggregate.judge
    assert told is not None
    assert told["failed"] == 1
    assert told["failure_samples"][0].startswith("status 400")
    assert told["faithfulness_cold"]["n"] == 2
    assert told["faithfulness_warm"]["n"] == 3


@pytest.mark.parametrize("status", [401, 404, 503])
def test_a_judge_that_does_not_answer_ends_with_3(
    status: int, judge: Callable[..., tuple[Ended, Path]], stub: Stub
) -> None:
    stub.answer = lambda question: status
    ended, output = judge()
    assert ended.exit_code == 3
    assert f"status {status}" in ended.stderr
    assert not output.exists()


def test_an_address_where_nobody_listens_ends_with_3(judge: Callable[..., tuple[Ended, Path]]) -> None:
    ended, _ = judge("--timeout", "2", url="http://127.0.0.1:1")
    assert ended.exit_code == 3
    assert judge(url="nonsense")[0].exit_code == 2


def test_a_judge_that_falls_silent_after_the_first_question_ends_with_3(
    judge: Callable[..., tuple[Ended, Path]], stub: Stub
) -> None:
    stub.answer = lambda question: "ready" if "ready" in question else 500
    ended, output = judge()
    assert ended.exit_code == 3
    assert "no question was answered" in ended.stderr
    assert not output.exists()


def test_the_key_is_sent_and_kept_nowhere(
    judge: Callable[..., tuple[Ended, Path]], stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMBENCH_JUDGE_API_KEY", "secret-key")
    ended, output = judge()
    assert stub.keys == {"Bearer secret-key"}
    assert "secret-key" not in output.read_text() + ended.output


def test_prompts_that_are_too_long_are_left_out_and_counted(
    judge: Callable[..., tuple[Ended, Path]], stub: Stub
) -> None:
    ended, output = judge("--max-prompt-chars", "5")
    told = read_json(output, Result).aggregate.judge
    assert told is not None
    assert (told["prompts_too_long"], told["asked"]) == (3, 0)
    assert "3 items left out" in ended.stdout


def test_another_manifest_is_refused(judge: Callable[..., tuple[Ended, Path]], manifest: Path) -> None:
    manifest.write_text(manifest.read_text() + "\n")
    ended, _ = judge()
    assert ended.exit_code == 1
    assert "was not run on it" in ended.stderr


def test_a_judge_that_breaks_off_keeps_its_opinions(
    judge: Callable[..., tuple[Ended, Path]], stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sembench.judge.run.UNANSWERED_IN_A_ROW", 2)
    stub.answer = lambda question: prefers_warm(question) if "Evidence 0" in question or "ready" in question else 500
    ended, output = judge("--concurrency", "1")
    assert ended.exit_code == 3
    assert "run again with --resume" in ended.stderr
    assert not output.exists()
    assert judge()[0].exit_code == 2, "neither taken up nor dropped without being told"
    stub.answer = prefers_warm
    stub.requests.clear()
    ended, output = judge("--resume")
    assert ended.exit_code == 0, ended.output
    assert not any("Evidence 0" in request["messages"][-1]["content"] for request in stub.requests)
    told = read_json(output, Result).aggregate.judge
    assert told is not None
    assert told["faithfulness_warm"] == {"mean": 5.0, "n": 3}
    assert told["pairwise"]["n"] == 3
    assert list(output.parent.glob("*.partial.jsonl")) == []


def test_another_judges_opinions_are_not_taken_up(
    judge: Callable[..., tuple[Ended, Path]], stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sembench.judge.run.UNANSWERED_IN_A_ROW", 2)
    stub.answer = lambda question: prefers_warm(question) if "Evidence 0" in question or "ready" in question else 500
    assert judge("--concurrency", "1")[0].exit_code == 3
    stub.answer = prefers_warm
    ended, _ = judge("--resume", "--judge-model", "another")
    assert ended.exit_code == 2
    assert "judge model: was 'j', is 'another'" in ended.stderr
    assert judge("--overwrite", "--judge-model", "another")[0].exit_code == 0


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ('{"score": 4}', 4),
        ('```json\n{"score": 1}\n```', 1),
        ('<think>{"score": 2}</think>{"score": 3}', 3),
        ('{"score": 4} and again {"score": 4}', 4),
        ('{"score": 4} no, {"score": 2}', None),
        ('<think>{"score": 4}', None),
        ('{"score": 6}', None),
        ('{"score": 4.5}', None),
        ('{"score": true}', None),
        ('{"score": "4"}', None),
        ("4", None),
        ("", None),
        ('{"score": ', None),
    ],
)
def test_a_score_is_a_whole_number_from_1_to_5_in_an_object(reply: str, score: int | None) -> None:
    assert read_score(reply) == score


@pytest.mark.parametrize(
    ("reply", "vote"),
    [
        ('{"better": "A"}', "A"),
        ('{"better": "b"}', "B"),
        ('{"better": "tie"}', "tie"),
        ('{"better": "both"}', None),
        ('{"better": ["A"]}', None),
        ("A", None),
    ],
)
def test_a_vote_is_a_b_or_tie(reply: str, vote: str | None) -> None:
    assert read_vote(reply) == vote
