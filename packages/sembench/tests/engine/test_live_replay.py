"""The replay commands against a real vLLM server: its cache, its counts, its reset."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time

import httpx
import pytest

from sembench.live.arms import ItemReplay, Servers
from sembench.live.config import LiveConfig
from sembench.live.isolation import Capabilities, Isolation
from sembench.schema import ManifestItem, NoiseFloor, Result, read_json

OUTPUT_TOKENS = 12
_SENTENCES = (
    "The harbor office keeps records of cargo and weather. ",
    "Every ship that enters in spring pays a toll at the northern berth. ",
    "The clerk writes down tonnage, delays and the captain's name. ",
    "Repairs to cranes and ropes are noted in the second book. ",
    "Barrels and timber are inspected before they leave the quay. ",
)


def document(seed: int, sentences: int = 18) -> str:
    """About 210 tokens, other ones for every seed from the first sentence on."""
    return f"Ledger {seed * 7919}. " + "".join(random.Random(seed).choices(_SENTENCES, k=sentences))


def item(number: int, donor: str, recipient: str, transform: str) -> dict:
    return {
        "item_id": f"{number:016x}",
        "dataset": "made",
        "source_id": f"source-{number}",
        "transform": transform,
        "donor_prompts": [{"donor_id": f"{number + 4096:016x}", "text": donor, "label": "donor"}],
        "recipient_prompt": recipient,
        "input": "What is recorded?",
        "answers": ["cargo"],
        "negative_control": transform == "negative_control",
        "benchmark_version": "sembench.manifest.v1",
    }


def items() -> list[dict]:
    one, two, three = (document(seed) for seed in (1, 2, 3))
    return [
        item(1, f"{one}\nThe captains are", f"{one}\nThe cargo is", "leading_evidence_new_task"),
        item(2, f"On captains. {two}\nThey are", f"What is the cargo? {two}\nIt is", "instruction_variant"),
        item(3, f"{document(4)}\nThe captains are", f"{three}\nThe cargo is", "negative_control"),
    ]


@pytest.fixture
def manifest(tmp_path):
    path = tmp_path / "manifest.jsonl"
    path.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in items()))
    return path


@pytest.fixture
def sembench(vllm_server, manifest):
    """Runs a command of its own process; every command but the preflight gets the manifest and the server."""

    def start(name, output, *words):
        common = ["--manifest", manifest, "--output", output, "--gateway-url", vllm_server.base_url]
        common += ["--model", vllm_server.model, "--max-output-tokens", OUTPUT_TOKENS]
        common += ["--post-donor-delay-ms", 0] if name == "run-live-gateway" else []
        command = [sys.executable, "-m", "sembench", name, *(str(word) for word in [*common, *words])]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    return start


def finish(process, expected=0):
    output, _ = process.communicate()
    assert process.returncode == expected, output
    return output


def by_arm(result):
    arms = {}
    for record in result.requests:
        arms.setdefault(record.arm, []).append(record)
    return arms


def verify(server, *words):
    command = [sys.executable, "-m", "sembench", "verify-endpoint", "--url", server.base_url, *words]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})


def test_the_preflight_finds_everything_that_this_server_can_do(vllm_server):
    done = verify(vllm_server, "--model", vllm_server.model)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = [[cell.strip() for cell in line.split("│")[1:3]] for line in done.stdout.splitlines() if "│" in line]
    assert dict(cells) == {
        "reachable": "yes",
        "model listed": "yes",
        "streams": "yes",
        "reports usage": "yes",
        "reports cached tokens": "yes",
        "cache salt (cache_salt)": "yes",
        "reset": "yes",
        "reuse switch": "yes",
    }
    assert "vllm 0.32.0" in done.stdout


def test_a_model_that_it_does_not_serve_is_refused(vllm_server):
    done = verify(vllm_server, "--model", "another")
    assert done.returncode == 3
    assert f"--model another is not served; served: {vllm_server.model}" in done.stderr


def test_a_reset_that_resets_nothing_is_found_out(vllm_server):
    """/ping takes a POST and answers 200."""
    done = verify(vllm_server, "--reset-url", f"{vllm_server.base_url}/ping")
    (row,) = [line for line in done.stdout.splitlines() if "/ping" in line]
    assert "│ no " in row
    assert "cached tokens after" in row


def test_a_paired_replay_is_proved_cold_and_shows_what_the_engines_own_cache_gives(sembench, vllm_server, tmp_path):
    output = tmp_path / "result.json"
    finish(sembench("run-live-gateway", output, "--paired", "--exact", "--block-size", vllm_server.block_size))
    result = read_json(output, Result)
    assert result.run.engine["version"] == "0.32.0"
    assert result.run.engine["isolation"] == "reset and new cache salt"
    assert result.paired.clean_pairs == 3
    arms = by_arm(result)
    assert all(record.status == "ok" for record in result.requests)

    assert [record.engine_cached_tokens for record in arms["cold"]] == [0, 0, 0]
    assert [record.proved_cold for record in arms["cold"]] == [True] * 3
    # The engine caches whole blocks and always computes the last token.
    block = vllm_server.block_size
    whole = [(record.prompt_tokens - 1) // block * block for record in arms["exact"]]
    assert [record.engine_cached_tokens for record in arms["exact"]] == whole
    # Donors help a plain engine only where the recipient begins as they do.
    leading, variant, control = (record.engine_cached_tokens for record in arms["warm"])
    assert leading >= block * 4
    assert (variant, control) == (0, 0)

    assert [record.output for record in arms["exact"]] == [record.output for record in arms["cold"]]
    assert all(record.output_tokens <= OUTPUT_TOKENS for record in result.requests)
    assert result.paired.exact_ttft_ms_median > 0
    assert result.aggregate.backend_confirmed_block_rate is None, "cached tokens are no evidence of semantic reuse"


def test_the_fixture_is_replayed_with_donors_at_another_address(vllm_server, tmp_path):
    manifest, output = tmp_path / "fixture.jsonl", tmp_path / "result.json"
    build = ["build", "--profile", "fixture", "--output", str(manifest)]
    # The same server by another name stands for the worker behind a gateway.
    worker = vllm_server.base_url.replace("127.0.0.1", "localhost")
    replay = ["run-live-gateway", "--manifest", str(manifest), "--output", str(output), "--max-items", "2"]
    servers = ["--gateway-url", vllm_server.base_url, "--donor-url", worker, "--model", vllm_server.model]
    for words in (build, [*replay, *servers, "--warmup-requests", "0", "--post-donor-delay-ms", "0"]):
        done = subprocess.run([sys.executable, "-m", "sembench", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    records = read_json(output, Result).requests
    assert [(record.transform, record.status) for record in records] == [
        ("exact_repeat", "ok"),
        ("instruction_variant", "ok"),
    ]
    assert records[0].engine_cached_tokens > records[0].prompt_tokens - 2 * vllm_server.block_size


def test_the_chat_template_is_served_through_the_chat_api(sembench, tmp_path):
    output = tmp_path / "result.json"
    finish(sembench("run-live-gateway", output, "--template", "chat", "--max-items", 1, "--capture-logprobs"))
    (record,) = read_json(output, Result).requests
    assert record.status == "ok"
    assert record.output
    assert len(record.output_logprobs) >= 1


def test_a_cold_arm_that_the_engine_shows_to_be_warm_is_refused(vllm_server):
    """The harness believes that it has reset the cache; the engine's count says otherwise."""
    config = LiveConfig(
        engine="openai", url=vllm_server.base_url, model=vllm_server.model, paired=True, max_output_tokens=2
    )
    believed = Capabilities(cached_tokens="reported", reset_urls=(f"{vllm_server.base_url}/ping",))

    async def serve_twice():
        async with httpx.AsyncClient() as client:
            endpoint = config.endpoint(client)
            isolation = Isolation(client, believed, concurrency=1)
            prompt = ManifestItem.model_validate(item(9, "unused", document(9), "exact_repeat"))
            replay = ItemReplay(prompt, config, Servers(endpoint, endpoint), isolation, believed)
            return [await replay.serve("cold") for _ in range(2)]

    first, second = asyncio.run(serve_twice())
    assert (first.proved_cold, first.engine_cached_tokens) == (True, 0)
    assert second.proved_cold is False
    assert second.cold_proof.startswith("refused as warm: reset, yet ")


def test_a_killed_replay_resumes_to_the_same_records(sembench, tmp_path):
    whole, killed = tmp_path / "whole.json", tmp_path / "killed.json"
    finish(sembench("run-live-gateway", whole, "--paired"))

    partial = tmp_path / "killed.json.partial.jsonl"
    process = sembench("run-live-gateway", killed, "--paired")
    while not partial.exists() or partial.read_text().count('"record"') < 3:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not killed.exists()
    finish(sembench("run-live-gateway", killed, "--paired", "--resume"))

    one, other = read_json(whole, Result), read_json(killed, Result)
    left_out = {"request_id", "ttft_ms", "latency_ms"}
    assert [record.model_dump(exclude=left_out) for record in other.requests] == [
        record.model_dump(exclude=left_out) for record in one.requests
    ]
    assert other.aggregate == one.aggregate
    assert (other.paired.clean_pairs, other.paired.dropped) == (one.paired.clean_pairs, one.paired.dropped)
    assert (one.config["resumed"], other.config["resumed"]) == (0, 1)


def test_two_cold_servings_in_float32_are_the_same_text(sembench, tmp_path):
    output = tmp_path / "floor.json"
    finish(sembench("calibrate-noise-floor", output, "--max-items", 2))
    floor = read_json(output, NoiseFloor)
    assert (floor.exact_match.numerator, floor.exact_match.denominator) == (2, 2)
    assert floor.rouge_l.p5 == 1.0
    assert floor.ttft_ratio.p5 <= floor.ttft_ratio.p95
