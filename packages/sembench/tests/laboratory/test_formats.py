from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from sembench.cli import main
from sembench.laboratory.anonymising import Anonymiser
from sembench.laboratory.trace_schema import TraceBlock, TraceRequest
from sembench.laboratory.traces import READERS, WRITERS, detect, iterate_trace, read_trace
from sembench.schema import InputError

REQUEST = {
    "request_id": "r1",
    "timestamp_ms": 5.5,
    "session_id": "s",
    "tenant_id": "acme",
    "model_name": "m",
    "blocks": [
        {"block_id": "b0", "content_hash": "aa", "semantic_type": "system", "token_count": 40, "position": 0},
        {"content_hash": "bb", "semantic_type": "user", "token_count": 7, "text": 'a "quoted", line\nand more'},
    ],
    "observed_ttft_ms": 12.5,
    "observed_prefill_tokens": 7,
}
MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 3000, "input_length": 1200, "output_length": 9, "hash_ids": [0, 1, 3]},
    {"timestamp": 27000, "input_length": 512, "output_length": 1, "hash_ids": [0]},
]
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,318,8\n"
)
SESSION = {
    "id": "trace_0001",
    "models": ["m"],
    "block_size": 64,
    "hash_id_scope": "local",
    "tool_tokens": 512,
    "system_tokens": 512,
    "requests": [
        {"t": 0.0, "type": "n", "model": "m", "in": 1290, "out": 4, "hash_ids": list(range(1, 21)), "api_time": 1.5},
        {
            "t": 10.0,
            "type": "subagent",
            "agent_id": "a",
            "tool_tokens": 64,
            "system_tokens": 0,
            "requests": [{"t": 2.5, "type": "n", "model": "m", "in": 128, "out": 1, "hash_ids": [90, 91]}],
        },
        {"t": 30.0, "type": "s", "model": "m", "in": 1600, "out": 4, "hash_ids": list(range(1, 26)), "ttft": 0.75},
    ],
}


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def sembench(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_our_own_form_in_all_its_shapes(tmp_path: Path) -> None:
    request = TraceRequest.model_validate(REQUEST)
    for form in ("jsonl", "json", "csv"):
        path = tmp_path / f"trace.{form}"
        path.write_text("".join(WRITERS[form]([request, request.model_copy(update={"request_id": "r2"})])))
        assert detect(path) == form
        read = list(iterate_trace(path))
        assert [each.request_id for each in read] == ["r1", "r2"]
        assert read[0] == request


def test_a_json_document_may_be_the_list_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", [REQUEST])
    assert [each.request_id for each in iterate_trace(path)] == ["r1"]


def test_mooncake(tmp_path: Path) -> None:
    path = written(tmp_path / "conversation_trace.jsonl", *MOONCAKE)
    assert detect(path) == "mooncake"
    read = read_trace(path)
    assert [request.tokens for request in read] == [(512, 512, 76), (512, 512, 176), (512,)]
    assert [request.at_s for request in read] == [0, 3, 27]
    assert read[0].keys[:2] == read[1].keys[:2]
    assert read[0].keys[2] != read[1].keys[2]
    assert "".join(WRITERS["mooncake"](iterate_trace(path))) == "".join(
        json.dumps(line | {"timestamp": float(line["timestamp"]), "output_length": 0}, separators=(",", ":")) + "\n"
        for line in MOONCAKE
    )


def test_blocks_of_any_size_become_mooncake_s(tmp_path: Path) -> None:
    def request(*blocks: tuple[str, int]) -> TraceRequest:
        return TraceRequest(
            request_id="r", blocks=[TraceBlock(content_hash=name, token_count=tokens) for name, tokens in blocks]
        )

    requests = [request(("a", 700), ("b", 400)), request(("a", 700), ("c", 400)), request(("b", 400), ("a", 700))]
    lines = [json.loads(line) for line in WRITERS["mooncake"](requests)]
    assert [line["hash_ids"] for line in lines] == [[0, 1, 2], [0, 3, 4], [5, 6, 7]]
    assert [line["input_length"] for line in lines] == [1100] * 3


def test_azure_has_sizes_and_times_and_nothing_in_common(tmp_path: Path) -> None:
    path = tmp_path / "AzureLLMInferenceTrace_code.csv"
    path.write_text(AZURE)
    assert detect(path) == "azure"
    read = read_trace(path)
    assert [request.tokens for request in read] == [(4808,), (318,)]
    assert read[1].at_s == pytest.approx(0.052)
    assert read[0].keys != read[1].keys


def test_azure_s_second_release_has_a_zone(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n")
    assert read_trace(path)[0].tokens == (2162,)


def test_coding_sessions_with_their_sub_agents(tmp_path: Path) -> None:
    written(tmp_path / "trace_0001.json", SESSION)
    written(tmp_path / "trace_0002.json", SESSION | {"id": "trace_0002"})
    assert detect(tmp_path) == detect(tmp_path / "trace_0001.json") == "kv-cache-tester"
    read = read_trace(tmp_path)
    assert [(request.session_id, request.at_s) for request in read] == [
        ("trace_0001", 0.0),
        ("trace_0001", 12.5),
        ("trace_0001", 30.0),
        ("trace_0002", 60.0),
        ("trace_0002", 72.5),
        ("trace_0002", 90.0),
    ]
    first, agent, last = read[:3]
    assert first.tokens == (512, 512, 256, 10)
    assert first.kinds == ("template", "system", "other", "other")
    assert agent.kinds == ("template",)
    assert last.keys[:2] == first.keys[:2]
    assert last.observed_ttft_ms == 750
    # Ids are counted anew in every session, so sessions share nothing.
    assert not set(first.keys) & set(read[3].keys)


def test_requests_are_put_in_the_order_of_time(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", REQUEST | {"timestamp_ms": 9000}, REQUEST | {"timestamp_ms": 4000})
    assert [request.at_s for request in read_trace(path)] == [0, 5]


def test_tenants_and_models_share_nothing(tmp_path: Path) -> None:
    others = [REQUEST, REQUEST | {"tenant_id": "other"}, REQUEST | {"model_name": "other"}, REQUEST]
    keys = [request.keys for request in read_trace(written(tmp_path / "t.jsonl", *others))]
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]


BAD_BLOCK = {"content_hash": "a", "token_count": 0}


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("jsonl", "{", ":1: not JSON"),
        ("jsonl", "[1]\n", ":1: expected a JSON object"),
        ("jsonl", json.dumps(REQUEST) + '\n{"request_id": "x"}\n', ":2: blocks: Field required"),
        ("jsonl", json.dumps(REQUEST | {"blocks": []}), ":1: blocks: "),
        (
            "jsonl",
            json.dumps(REQUEST | {"blocks": [BAD_BLOCK]}),
            ":1: blocks.0.token_count: .*greater than or equal to 1",
        ),
        ("jsonl", json.dumps(REQUEST | {"timestamp_ms": -1}), ":1: timestamp_ms: "),
        ("jsonl", json.dumps(REQUEST | {"timestamp_ms": float("nan")}), ":1: timestamp_ms: "),
        ("jsonl", json.dumps(REQUEST | {"observed_ttft_ms": 1e300}), ":1: observed_ttft_ms: "),
        ("jsonl", "", "holds no requests"),
        ("jsonl", "\xff\xfe", ":1: "),
        ("json", '{"requests": 5}', "requests: "),
        ("json", "[" * 100_000, "not JSON"),
        ("csv", "a,b\n1,2\n", "no column content_hash, request_id, token_count"),
        ("csv", "request_id,content_hash,token_count\nr,h,many\n", ":2: blocks.0.token_count: "),
        ("csv", "", "no column"),
        (
            "mooncake",
            json.dumps(MOONCAKE[0] | {"input_length": 5000}),
            "input_length: 5000 tokens are not 3 blocks of 512",
        ),
        ("mooncake", json.dumps(MOONCAKE[0] | {"hash_ids": []}), ":1: hash_ids: "),
        ("mooncake", json.dumps(MOONCAKE[0] | {"hash_ids": ["x"]}), ":1: hash_ids.0: "),
        ("azure", "TIMESTAMP,ContextTokens\nyesterday,5\n", ":2: TIMESTAMP: 'yesterday' is no time"),
        ("azure", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,x\n", ":2: ContextTokens: 'x' is no whole number"),
        ("azure", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,0\n", ":2: ContextTokens: 0 is not between 1"),
        ("azure", "a,b\n", ":1: no column ContextTokens, TIMESTAMP; "),
        ("kv-cache-tester", '{"id": "x", "requests": []}', "requests: "),
        ("kv-cache-tester", '{"id": "x", "requests": [{"t": -5}]}', "requests.0.t: "),
    ],
)
def test_what_is_wrong_with_a_trace_is_named(tmp_path: Path, form: str, text: str, said: str) -> None:
    path = tmp_path / "trace.txt"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=f"trace.txt.*{said}"):
        read_trace(path, form)
    output = tmp_path / "out" / "converted.jsonl"
    done = sembench("convert-trace", "--trace", path, "--format", form, "--output", output)
    assert done.exit_code == 2
    assert not output.exists()
    replay = sembench(
        "replay-trace", "--trace", path, "--format", form, "--cache-token-budget", 5, "--output-dir", tmp_path / "o"
    )
    assert replay.exit_code == 2
    assert not (tmp_path / "o").exists()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(sorted(READERS)))
def test_no_bytes_make_a_reader_fail_otherwise_than_with_a_message(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, form: str
) -> None:
    path = tmp_path_factory.mktemp("bytes") / "trace"
    path.write_bytes(data)
    with pytest.raises(InputError):
        read_trace(path, form)


def test_the_anonymiser_keeps_what_recurs_and_nothing_else(tmp_path: Path) -> None:
    requests = [
        TraceRequest.model_validate(REQUEST),
        TraceRequest.model_validate(REQUEST | {"request_id": "secret", "timestamp_ms": 90.0}),
        TraceRequest.model_validate(REQUEST | {"tenant_id": "rival"}),
    ]
    done = list(Anonymiser(5.5).anonymise(requests))
    text = "".join(WRITERS["jsonl"](done))
    for told in ("acme", "rival", "secret", "quoted", '"aa"', '"bb"', '"m"'):
        assert told not in text
    hashes = [[block.content_hash for block in request.blocks] for request in done]
    assert hashes[0] == hashes[1] != hashes[2]
    assert [request.timestamp_ms for request in done] == [0, 84.5, 0]
    assert [block.token_count for block in done[0].blocks] == [40, 7]
    # Another run has another secret: two published traces cannot be joined.
    again = next(iter(Anonymiser(5.5).anonymise(requests)))
    assert again.blocks[0].content_hash != hashes[0][0]


def test_converting_and_redacting_by_command(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", REQUEST)
    output = tmp_path / "new" / "t.csv"
    done = sembench("convert-trace", "--trace", path, "--to", "csv", "--redact-text", "--output", output)
    assert done.exit_code == 0, done.output
    assert "quoted" not in output.read_text()
    assert next(iterate_trace(output)).blocks[1].content_hash == "bb"
    assert sembench("convert-trace", "--trace", path, "--to", "xml", "--output", output).exit_code == 2
