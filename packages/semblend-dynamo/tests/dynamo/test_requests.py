"""What the router reads of a request, what it leaves alone, and its command line."""

from typing import Any

import pytest

from semblend_core import InvalidTokenIdsError
from semblend_dynamo.dynamo.arguments import parse
from semblend_dynamo.dynamo.continuing import Progress
from semblend_dynamo.dynamo.requests import RequestReader
from semblend_dynamo.dynamo.taints import Taints
from semblend_dynamo.dynamo.versions import why_unsure

READER = RequestReader("model", 16)
GIVEN = ["--endpoint", "dyn://w.backend.generate", "--model-path", "m", "--model-name", "n", "--block-size", "16"]


def test_the_tenant_is_dynamos_cache_salt() -> None:
    by_header = READER.read("r", {"token_ids": [1, 2], "routing": {"cache_salt": "acme"}})
    by_body = READER.read("r", {"token_ids": [1, 2], "extra_args": {"nvext": {"cache_salt": "acme"}}})
    nobody = READER.read("r", {"token_ids": [1, 2], "routing": None, "extra_args": None})
    assert by_header.namespace == by_body.namespace != nobody.namespace
    assert (by_header.salt, nobody.salt) == ("acme", None)
    assert "acme" not in repr(by_header.namespace)


def test_an_adapters_donors_are_its_own() -> None:
    base = READER.read("r", {"token_ids": [1]})
    tuned = READER.read("r", {"token_ids": [1], "routing": {"lora_name": "tuned"}})
    assert base.namespace != tuned.namespace


@pytest.mark.parametrize(
    ("request_body", "why"),
    [
        ({"token_ids": [1], "multi_modal_data": {"image_url": ["x"]}}, "not_only_tokens"),
        ({"token_ids": [1], "prompt_embeds": "x"}, "not_only_tokens"),
        ({"token_ids": [1], "routing": {"backend_instance_id": 0}}, "placed_already"),
        ({"token_ids": [1], "multi_modal_data": None, "routing": {"backend_instance_id": None}}, None),
    ],
)
def test_requests_that_are_left_to_dynamo(request_body: dict[str, Any], why: str | None) -> None:
    assert READER.read("r", request_body).why_not == why


def test_impossible_tokens_are_refused() -> None:
    with pytest.raises(InvalidTokenIdsError):
        READER.read("r", {"token_ids": [-1]})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--endpoint", "only.two"], "namespace.component.endpoint"),
        (["--namespace", "w"], "must not be the workers' own"),
        (["--block-size", "0"], "at least 1"),
        (["--kv-router-config", "{"], "not JSON"),
        (["--kv-router-config", "[]"], "JSON object"),
    ],
)
def test_wrong_arguments_are_named(change: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(GIVEN).namespace == "semblend"
    with pytest.raises(SystemExit):
        parse([*GIVEN, *change])
    assert says in capsys.readouterr().err


def test_what_is_left_of_an_answer() -> None:
    request = {"token_ids": [1, 2], "stop_conditions": {"max_tokens": 5, "min_tokens": 4}, "model": "m"}
    progress = Progress()
    progress.note({"token_ids": [7, 8]})
    assert progress.rest_of(request) == {
        "token_ids": [1, 2, 7, 8],
        "stop_conditions": {"max_tokens": 3, "min_tokens": 2},
        "model": "m",
    }
    chunk = {"token_ids": [9], "completion_usage": {"prompt_tokens": 4, "completion_tokens": 1}}
    progress.note(chunk)
    assert chunk["completion_usage"] == {"prompt_tokens": 2, "completion_tokens": 3}
    assert not progress.finished
    progress.note({"token_ids": [9], "finish_reason": "stop"})
    assert progress.finished


def test_answers_that_cannot_be_continued() -> None:
    request: dict[str, Any] = {"token_ids": [1], "stop_conditions": {"max_tokens": 2}}
    for chunk, asked in [
        ({"token_ids": [5, 6]}, request),
        ({"token_ids": [5], "index": 1}, request),
        ({"token_ids": [5]}, {**request, "sampling_options": {"guided_decoding": {"json": "{}"}}}),
        ("not a chunk", request),
    ]:
        progress = Progress()
        progress.note(chunk)
        assert progress.rest_of(asked) is None


def test_a_worker_is_preferred_by_a_taint_that_no_other_has() -> None:
    cards = {
        "1": '{"runtime_config": {"taints": ["pool/all", "host/a"]}}',
        "2": '{"runtime_config": {"taints": ["pool/all"]}}',
        "3": "no json",
    }
    taints = Taints(lambda: cards)
    assert [taints.of(number) for number in (1, 2, 3, 4)] == ["host/a", None, None, None]


def test_another_dynamo_is_named_at_the_start() -> None:
    assert why_unsure("1.6.1") is None
    assert "9.9.9 is tried at your own risk" in (why_unsure("9.9.9") or "")
