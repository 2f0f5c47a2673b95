"""``sembench headline``: the grid is served, and its page says no more than the backend confirmed."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from sembench.headline.estimate import duration, fit_costs
from sembench.headline.similarity import measure_similarity, similarity_band
from sembench.identity import load_manifest
from sembench.live.endpoint import Reply

TRANSFORMS = ("instruction_variant", "partial_overlap", "negative_control")
Run = Callable[..., Result]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "ledgers"
    folder.mkdir()
    draw = random.Random(7)

    def sentence() -> str:
        words = ["".join(draw.choices("abdeilmnorstu", k=draw.randint(4, 8))) for _ in range(12)]
        return " ".join(words).capitalize() + "."

    paragraphs = [" ".join(sentence() for _ in range(3)) for _ in range(60)]
    (folder / "ships.txt").write_text("\n\n".join(paragraphs))
    return folder


@pytest.fixture
def headline(stub: Any, texts: Path, tmp_path: Path, sembench: Run) -> Run:
    """Two lengths and one document of each: twelve items."""

    def run(*words: object, engine: str = "openai") -> Result:
        server = ("--url", stub.url, "--engine", engine, "--model", "tiny", "--output-dir", tmp_path / "out")
        grid = ("--source", texts, "--lengths", "400", "800", "--documents", "1", "--transforms", *TRANSFORMS)
        return sembench("headline", *server, *grid, "--post-donor-delay-ms", "0", *words)

    return run


@pytest.fixture
def page(tmp_path: Path) -> Callable[[], str]:
    return lambda: (tmp_path / "out" / "headline.md").read_text()


@pytest.fixture
def audit(stub: Any, tmp_path: Path) -> Path:
    """The adapter's stream: donors land for every recipient but the controls, which are declined."""
    path = tmp_path / "audit.jsonl"

    def tell(seen: Any, cached: int) -> None:
        name = seen.headers["x-request-id"]
        if "-warm-" not in name:
            return
        items = {item.item_id: item for item in load_manifest(tmp_path / "out" / "manifest.jsonl")}
        if items[name.split("-")[2]].negative_control:
            events = [{"event": "declined", "reason": "no_spans", "stage": "lookup", "donor_id": None}]
        else:
            landed = {"event": "materialized", "tokens": 100, "layers": 2, "bytes": None, "microseconds": None}
            events = [{"event": "load_advertised", "tokens": 100, "spans": 2}, landed]
        envelope = {"schema": "semblend.audit.v1", "time": 1767225600.0, "engine": "stub", "namespace": None}
        with path.open("a") as stream:
            stream.writelines(json.dumps({**envelope, "request_id": name, **event}) + "\n" for event in events)

    stub.on_request = tell
    return path


def test_the_page_counts_what_the_backend_confirmed(headline: Run, page: Callable[[], str], audit: Path) -> None:
    done = headline("--connector-audit", audit)
    assert done.exit_code == 0, done.output
    assert "12 items, 36 measured requests" in done.output
    assert "estimate: " in done.output
    told = page()
    for title in (
        "Time to first token by context length",
        "By similarity",
        "By dataset",
        "By transform",
        "Break-even hit rate",
        "Quality",
        "Negative controls",
        "Left out, declined and failed",
    ):
        assert f"## {title}" in told
    assert "confirmed by the backend's own audit stream" in told
    rows: dict[str, str] = {}
    for line in told.splitlines():
        rows.setdefault(line.split(" | ")[0].removeprefix("| "), line)
    assert "100.0% (5 of 5)" in rows["400"]
    assert "100.0% (5 of 5)" in rows["800"]
    assert "100.0% (10 of 10)" in rows["ledgers"]
    assert "100.0% (8 of 8)" in rows["partial_overlap"]
    assert "0.0% (0 of 2)" in rows["Controls for which any donor KV landed"]
    assert "Declined by the backend: no_spans: 2" in told


def test_each_band_of_similarity_has_requests(headline: Run, audit: Path, page: Callable[[], str]) -> None:
    assert headline("--connector-audit", audit).exit_code == 0
    bands = page().partition("## By similarity")[2].partition("## By dataset")[0]
    for band in ("0.80 to 0.90", "0.70 to 0.80", "0.60 to 0.70", "0.50 to 0.60"):
        assert f"| {band} |" in bands


def test_without_the_backends_word_no_hit_is_claimed(headline: Run, page: Callable[[], str]) -> None:
    assert headline().exit_code == 0
    told = page()
    assert "**not confirmed.**" in told
    assert "no backend event says which requests reused KV" in told
    rows = [line for line in told.splitlines() if line.startswith(("| 400 ", "| 800 ", "| ledgers "))]
    assert rows
    assert not any("100.0% (" in row for row in rows)
    assert "| Controls for which any donor KV landed | - |" in told


def test_a_server_that_proves_nothing_cold_gets_a_page_without_a_pair(
    stub: Any, headline: Run, page: Callable[[], str]
) -> None:
    stub.cached = "absent"
    done = headline("--no-noise-floor")
    assert done.exit_code == 1
    assert "no clean pair" in done.output
    assert "- No clean pair: cold not proved: 12" in page()


def test_a_model_that_says_nothing_gets_a_page(stub: Any, headline: Run, page: Callable[[], str]) -> None:
    stub.answer = lambda seen: "" if not seen.prepares else "ready"
    done = headline()
    assert done.exit_code == 1
    assert "no clean pair" in done.output
    assert "TTFT ratios were not measured" in " ".join(page().split())
    assert "- No clean pair: cold ttft unknown: 12" in page()


def told_prompt(tokens: int) -> Callable[[Any, list[str]], list[str]]:
    """A server that states so many tokens for every prompt."""

    def edit(seen: Any, events: list[str]) -> list[str]:
        chunks = [json.loads(event) if event != "[DONE]" else event for event in events]
        for chunk in chunks:
            if "usage" in chunk:
                chunk["usage"]["prompt_tokens"] = tokens
        return [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]

    return edit


def test_counts_that_cannot_be_are_no_figures(stub: Any, headline: Run, page: Callable[[], str], audit: Path) -> None:
    stub.events = told_prompt(7)
    assert headline("--connector-audit", audit, "--no-noise-floor").exit_code == 0
    assert "- No clean pair: more reused than prompt: 10" in page()
    assert "of 7" not in page()
    stub.events = told_prompt(10**30)
    assert headline("--connector-audit", audit, "--no-noise-floor", "--overwrite").exit_code == 0
    assert "000,000" not in page()


def test_sglangs_own_api_is_served_too(headline: Run, audit: Path, page: Callable[[], str]) -> None:
    assert headline("--connector-audit", audit, engine="sglang").exit_code == 0
    assert "tiny on sglang 4.5.6" in page()
    assert "100.0% (10 of 10)" in page()


def test_an_estimate_alone_serves_nothing(stub: Any, headline: Run, tmp_path: Path) -> None:
    done = headline("--estimate-only")
    assert done.exit_code == 0
    assert "estimate: " in done.output
    assert not stub.served
    assert not (tmp_path / "out" / "headline.md").exists()


def test_a_stopped_run_goes_on_and_a_finished_one_is_not_served_again(
    stub: Any, headline: Run, audit: Path, page: Callable[[], str]
) -> None:
    stub.fault = lambda seen, number: "400" if number >= 20 else None
    assert headline("--connector-audit", audit).exit_code == 3
    kept = [name for name in stub.ids()[:20] if name == "warm"]
    assert kept
    assert "give --resume to go on" in headline("--connector-audit", audit).output
    stub.fault = lambda seen, number: None
    served = len(stub.served)
    estimate = headline("--connector-audit", audit, "--resume", "--estimate-only")
    assert f"{len(kept)} of the items were served before" in estimate.output
    assert len(stub.served) == served
    assert headline("--connector-audit", audit, "--resume").exit_code == 0
    assert "taken up again 1 times" in page()
    assert "100.0% (10 of 10)" in page()
    served = len(stub.served)
    assert headline("--connector-audit", audit, "--resume").exit_code == 0
    assert len(stub.served) == served


def test_another_grid_is_not_mixed_in(headline: Run, tmp_path: Path) -> None:
    assert headline("--no-noise-floor").exit_code == 0
    manifest = (tmp_path / "out" / "manifest.jsonl").read_bytes()
    done = headline("--no-noise-floor", "--resume", "--manifest-seed", "8")
    assert done.exit_code == 2
    assert "was run on another grid" in done.output
    assert (tmp_path / "out" / "manifest.jsonl").read_bytes() == manifest, "the finished run keeps its own"
    assert headline("--no-noise-floor", "--overwrite", "--manifest-seed", "8").exit_code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--max-output-tokens", "32"), "max_output_tokens: was 64, is 32"),
        (("--tenant", "another"), "tenant: was 'sembench', is 'another'"),
    ],
)
def test_a_finished_run_of_other_settings_is_not_given_back(headline: Run, words: tuple[str, ...], told: str) -> None:
    assert headline("--no-noise-floor").exit_code == 0
    done = headline("--no-noise-floor", "--resume", *words)
    assert done.exit_code == 2
    assert told in done.output


def test_a_finished_run_of_another_server_is_not_given_back(stub: Any, headline: Run) -> None:
    assert headline("--no-noise-floor").exit_code == 0
    stub.owner = "another"
    done = headline("--no-noise-floor", "--resume")
    assert done.exit_code == 2
    assert "server name: was 'stub', is 'another'" in done.output


def test_a_stopped_run_goes_on_although_an_older_one_was_finished(
    stub: Any, headline: Run, tmp_path: Path, page: Callable[[], str]
) -> None:
    assert headline("--no-noise-floor").exit_code == 0
    finished = json.loads((tmp_path / "out" / "result.json").read_text())
    served = len(stub.served)
    stub.fault = lambda seen, number: "400" if number >= served + 20 else None
    assert headline("--no-noise-floor", "--overwrite").exit_code == 3
    stub.fault = lambda seen, number: None
    assert headline("--no-noise-floor", "--resume").exit_code == 0
    assert "taken up again 1 times" in page()
    ids = [record["request_id"] for record in finished["requests"]]
    assert not set(ids) & {
        record["request_id"] for record in json.loads((tmp_path / "out" / "result.json").read_text())["requests"]
    }


def test_an_estimate_of_a_finished_run_serves_nothing(stub: Any, headline: Run) -> None:
    assert headline("--no-noise-floor").exit_code == 0
    served = len(stub.served)
    done = headline("--estimate-only", "--resume")
    assert done.exit_code == 0
    assert "estimate: " in done.output
    assert len(stub.served) == served


@pytest.mark.parametrize("words", [(), ("--overwrite",)])
def test_an_estimate_of_another_grid_leaves_a_finished_run_alone(
    headline: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert headline("--no-noise-floor").exit_code == 0
    manifest = (tmp_path / "out" / "manifest.jsonl").read_bytes()
    done = headline("--estimate-only", "--manifest-seed", "8", *words)
    assert done.exit_code == 0
    assert "estimate: " in done.output
    assert (tmp_path / "out" / "manifest.jsonl").read_bytes() == manifest
    assert "nothing is served again" in headline("--no-noise-floor", "--resume").output


def test_requests_of_which_the_stream_says_nothing_are_counted_on_the_page(
    stub: Any, headline: Run, audit: Path, page: Callable[[], str]
) -> None:
    tell = stub.on_request

    def sometimes(seen: Any, cached: int) -> None:
        warm = [each for each in stub.served if "-warm-" in each.headers["x-request-id"]]
        if len(warm) <= 5:
            tell(seen, cached)

    stub.on_request = sometimes
    assert headline("--no-noise-floor", "--connector-audit", audit).exit_code == 0
    assert "**It tells of 5 of 12 requests**" in " ".join(page().split())


def test_failed_requests_are_listed(stub: Any, headline: Run, page: Callable[[], str]) -> None:
    stub.fault = lambda seen, number: "400" if number == 0 else None
    assert headline("--no-noise-floor").exit_code == 0
    assert "cold: HTTP 400: " in page()
    assert "- No clean pair: cold failed: 1" in page()


@pytest.fixture
def judge_patience() -> list[float]:
    """How many questions the judge answers before it falls silent; more are counted in it."""
    return [math.inf, 0]


@pytest.fixture
def judge_url(judge_patience: list[float]) -> Iterator[str]:
    """Scores every answer 4 and prefers neither."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = self.rfile.read(int(self.headers["Content-Length"])).decode()
            told = '{"better": "tie"}' if "answer_b" in question else '{"score": 4}'
            judge_patience[1] += 1
            self.send_response(200 if judge_patience[1] <= judge_patience[0] else 400)
            self.end_headers()
            self.wfile.write(json.dumps({"choices": [{"message": {"content": told}}]}).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_judges_scores_stand_beside_the_answers(headline: Run, page: Callable[[], str], judge_url: str) -> None:
    done = headline("--no-noise-floor", "--judge-url", judge_url, "--judge-model", "judge")
    assert done.exit_code == 0, done.output
    assert "| 4.00 (n=10) | 4.00 (n=10) | 100.0% (10 of 10) |" in page()
    assert "Judge: judge, 1 to 5" in page()


def test_a_judge_that_breaks_off_is_asked_only_for_the_rest(
    stub: Any, headline: Run, page: Callable[[], str], judge_url: str, judge_patience: list[float], monkeypatch: Any
) -> None:
    monkeypatch.setattr("sembench.judge.run.UNANSWERED_IN_A_ROW", 3)
    judged = ("--no-noise-floor", "--judge-url", judge_url, "--judge-model", "judge")
    judge_patience[0] = 6
    assert headline(*judged).exit_code == 3
    served = len(stub.served)
    judge_patience[:] = [math.inf, 0]
    done = headline(*judged, "--resume")
    assert done.exit_code == 0, done.output
    assert len(stub.served) == served
    assert 0 < judge_patience[1] < 13, "twelve items have one question each, and one more looks whether it is there"
    assert "| 4.00 (n=10) | 4.00 (n=10) | 100.0% (10 of 10) |" in page()


def test_another_judge_is_asked_anew(stub: Any, headline: Run, page: Callable[[], str], judge_url: str) -> None:
    judged = ("--no-noise-floor", "--judge-url", judge_url, "--judge-model")
    assert headline(*judged, "one").exit_code == 0
    served = len(stub.served)
    assert headline(*judged, "other", "--resume").exit_code == 0
    assert "Judge: other, 1 to 5" in page()
    assert len(stub.served) == served


def test_similarity_is_the_share_of_equal_text(headline: Run, tmp_path: Path) -> None:
    assert headline("--estimate-only").exit_code == 0
    items = load_manifest(tmp_path / "out" / "manifest.jsonl")
    longest = [item for item in items if item.metadata["length_band"] == 800]
    for item in longest:
        if item.transform == "partial_overlap":
            assert measure_similarity(item) == pytest.approx(item.metadata["share"], abs=0.1)
        if item.negative_control:
            assert similarity_band(item) == "below 0.50"


def test_the_estimate_grows_faster_than_the_length() -> None:
    costs = fit_costs(_timed(1_000, 1.1), _timed(2_000, 2.4))
    assert costs.prefill(1_000) == pytest.approx(1.1)
    assert costs.prefill(2_000) == pytest.approx(2.4)
    assert costs.prefill(8_000) == pytest.approx(14.4)
    assert costs.per_output_token == pytest.approx(0.1)


def _timed(tokens: int, seconds: float) -> Reply:
    return Reply("x", seconds * 1000, seconds * 1000 + 700, prompt_tokens=tokens, output_tokens=8)


@pytest.mark.parametrize(("seconds", "words"), [(42, "42 s"), (600, "10 min"), (9_000, "2.5 h")])
def test_durations_are_told_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert duration(seconds) == words
