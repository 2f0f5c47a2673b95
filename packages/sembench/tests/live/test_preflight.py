"""The preflight tries what a replay will rely on, and refuses what cannot work."""

import socket

import pytest


def rows(done):
    """The table's first two columns, by the first."""
    cells = [line.split("│") for line in done.stdout.splitlines() if "│" in line]
    return {cell[1].strip(): cell[2].strip() for cell in cells if cell[1].strip()}


@pytest.fixture
def verify(sembench, stub):
    return lambda *words: sembench("verify-endpoint", "--url", stub.url, *words)


def test_a_server_that_can_do_everything(verify, stub):
    done = verify("--model", "tiny")
    assert done.exit_code == 0
    found = rows(done)
    names = ["reachable", "model listed", "streams", "reports usage", "reports cached tokens", "reset", "reuse switch"]
    assert {name: found[name] for name in names} == dict.fromkeys(names, "yes")
    assert stub.resets_done == 1


def test_the_first_listed_model_is_taken_where_none_is_named(verify, stub):
    assert verify().exit_code == 0
    assert {seen.body["model"] for seen in stub.seen} == {"tiny"}


def test_a_server_that_is_not_there_is_refused_with_3(sembench):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        done = sembench("verify-endpoint", "--url", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert done.exit_code == 3
    assert "preflight refused http://127.0.0.1" in done.output
    assert "reachable: ConnectError" in done.output


def test_a_model_that_is_not_served_is_refused_with_the_names_that_are(verify):
    done = verify("--model", "huge")
    assert done.exit_code == 3
    assert "--model huge is not served; served: tiny" in done.output


def test_a_server_that_does_not_stream_is_refused(verify, stub):
    stub.streams = False
    done = verify()
    assert done.exit_code == 3
    assert "streams: malformed answer: asked for a stream of events, got application/json" in done.output


def test_a_server_that_lists_no_models_is_judged_by_its_answer(sembench, stub):
    """Nothing is at this address, not even a list: the completion decides."""
    done = sembench("verify-endpoint", "--url", f"{stub.url}/elsewhere", "--model", "tiny")
    assert done.exit_code == 3
    assert "streams: HTTP 404" in done.output


@pytest.mark.parametrize(
    ("behaviour", "row", "verdict"),
    [
        ({"usage": False}, "reports usage", "no"),
        ({"cached": "absent"}, "reports cached tokens", "no"),
        ({"resets": False}, "reset", "no"),
        ({"salts": False}, "cache salt", "no"),
        ({"always_cached": 8}, "reset", "no"),
    ],
)
def test_what_a_server_lacks_is_said_and_does_not_refuse_it(start_stub, sembench, behaviour, row, verdict):
    stub = start_stub(**behaviour)
    done = sembench("verify-endpoint", "--url", stub.url)
    assert done.exit_code == 0
    found = {name.split(" (")[0]: verdict for name, verdict in rows(done).items()}
    assert found[row] == verdict


def test_sglang_is_asked_through_its_own_api(verify, stub):
    done = verify("--engine", "sglang")
    assert done.exit_code == 0
    assert {seen.path for seen in stub.seen} == {"/generate"}
    assert rows(done)["cache salt (extra_key)"] == "yes"


@pytest.mark.parametrize("option", ["--gateway-url", "--donor-url"])
def test_a_replay_asks_both_its_servers_first(sembench, stub, write_manifest, tmp_path, option):
    urls = {"--gateway-url": stub.url, "--donor-url": stub.url} | {option: "http://127.0.0.1:9"}
    words = [word for pair in urls.items() for word in pair]
    common = ("--manifest", write_manifest(), "--output", tmp_path / "r.json", "--model", "tiny")
    done = sembench("run-live-gateway", *common, *words)
    assert done.exit_code == 3
    assert "preflight refused http://127.0.0.1:9" in done.output
    assert stub.served == []
    assert list(tmp_path.glob("r.json*")) == []


def test_an_address_may_end_in_v1(sembench, stub):
    assert sembench("verify-endpoint", "--url", f"{stub.url}/v1/").exit_code == 0


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>app</html>"),
        (200, b'"1.2.3"'),
        (302, b""),
        (400, b"bad path"),
        (401, b"{}"),
        (403, b""),
        (500, b""),
    ],
)
def test_a_server_that_says_anything_at_version_is_reachable(stub, gateway_run, read_result, answer):
    """The path is no part of OpenAI's API."""
    stub.version = answer
    assert gateway_run(items=1).exit_code == 0
    assert "version" not in read_result().run.engine
