"""What a replay sends, in which order, and what its records say of it."""

from itertools import pairwise

import pytest


def arms(result, arm):
    return [record for record in result.requests if record.arm == arm]


def test_donors_are_served_before_the_recipient_and_only_the_recipient_is_recorded(stub, gateway_run, read_result):
    assert gateway_run(donors=2, items=2).exit_code == 0
    assert stub.ids() == ["donor0", "donor1", "warm"] * 2
    records = read_result().requests
    assert [(record.item_id, record.arm) for record in records] == [(f"{n:016x}", "warm") for n in range(2)]
    assert all(record.status == "ok" and record.ttft_ms > 0 for record in records)
    assert records[0].prompt_tokens == 28
    assert records[0].engine_cached_tokens == 0


def test_a_paired_item_is_served_cold_before_any_donor_and_the_engine_proves_it(stub, gateway_run, read_result):
    assert gateway_run("--paired").exit_code == 0
    assert stub.ids() == ["cold", "donor0", "warm"] * 3
    result = read_result()
    cold = arms(result, "cold")
    assert [record.proved_cold for record in cold] == [True] * 3
    assert cold[0].cold_proof == "reset and new cache salt; the engine reported 0 cached tokens"
    assert result.paired.clean_pairs == 3
    assert result.paired.blended_ttft_speedup_median.n == 3


def test_arms_of_a_pair_share_no_salt_and_donor_and_recipient_do(stub, gateway_run):
    gateway_run("--paired")
    salts = [seen.body["cache_salt"] for seen in stub.served]
    for cold, donor, warm in zip(salts[::3], salts[1::3], salts[2::3], strict=True):
        assert donor == warm != cold
    assert len(set(salts)) == 6


def test_reuse_is_switched_off_for_cold_and_not_for_donors_and_warm(stub, gateway_run):
    gateway_run("--paired", "--exact", "--probe", items=1)
    assert stub.ids() == ["cold", "exact", "donor0", "warm", "probe"]
    off = {"semblend": "off"}
    assert [seen.body.get("kv_transfer_params") for seen in stub.served] == [off, off, None, None, off]


def test_the_exact_arm_repeats_the_cold_prompt_and_shows_the_engines_own_cache(gateway_run, read_result):
    assert gateway_run("--paired", "--exact").exit_code == 0
    result = read_result()
    assert [record.engine_cached_tokens for record in arms(result, "exact")] == [28] * 3
    assert result.paired.exact_ttft_ms_median > 0


def test_without_salts_a_reset_keeps_the_arms_apart(stub, gateway_run, read_result):
    stub.salts = False
    assert gateway_run("--paired").exit_code == 0
    result = read_result()
    assert {seen.body["cache_salt"] for seen in stub.served} == {"sembench"}, "the tenant's, so that servers may share"
    assert [record.cold_proof for record in arms(result, "cold")] == ["reset; the engine reported 0 cached tokens"] * 3
    # Donor and recipient share too few words for a block: what a warm request found would be the cold one's.
    assert [record.engine_cached_tokens for record in arms(result, "warm")] == [0] * 3


def test_without_salts_and_reset_a_new_first_line_keeps_the_arms_apart(stub, gateway_run, read_result):
    stub.salts = stub.resets = False
    assert gateway_run("--paired").exit_code == 0
    starts = [seen.prompt.split("\n")[0] for seen in stub.served]
    assert all(start.startswith("Session ") for start in starts)
    assert starts[1] == starts[2] != starts[0]
    result = read_result()
    assert result.paired.clean_pairs == 3
    assert arms(result, "cold")[0].cold_proof == "new first line; the engine reported 0 cached tokens"


def test_a_reset_that_the_preflight_saw_to_be_empty_words_is_not_relied_on(stub, gateway_run, read_result):
    stub.salts = stub.reset_empties = False
    assert gateway_run("--paired").exit_code == 0
    result = read_result()
    assert result.run.engine["isolation"] == "new first line"
    assert result.paired.clean_pairs == 3


def test_an_engine_that_omits_zero_is_believed_because_it_states_repeats(stub, gateway_run, read_result):
    stub.cached = "zero omitted"
    assert gateway_run("--paired").exit_code == 0
    cold = arms(read_result(), "cold")[0]
    assert cold.proved_cold is True
    assert cold.engine_cached_tokens is None, "what was not said is not 0"
    assert "no cached tokens, which it does for a repeated prompt" in cold.cold_proof


def test_a_cold_arm_that_was_warm_is_refused_and_a_run_without_clean_pairs_ends_with_1(stub, gateway_run, read_result):
    stub.fault = lambda seen, number: setattr(stub, "always_cached", 16)
    done = gateway_run("--paired")
    assert done.exit_code == 1
    assert "no clean pair" in done.output
    result = read_result()
    assert [record.proved_cold for record in arms(result, "cold")] == [False] * 3
    assert "refused as warm" in arms(result, "cold")[0].cold_proof
    assert "16 cached tokens" in arms(result, "cold")[0].cold_proof
    assert result.paired.clean_pairs == 0
    assert result.paired.blended_ttft_speedup_median is None


def test_where_the_engine_counts_nothing_coldness_is_unknown_and_no_pair_is_clean(stub, gateway_run, read_result):
    stub.cached = "absent"
    assert gateway_run("--paired").exit_code == 1
    cold = arms(read_result(), "cold")[0]
    assert cold.proved_cold is None
    assert "does not report cached_tokens" in cold.cold_proof


def test_the_chat_template_may_be_cached_and_nothing_more(stub, gateway_run, read_result):
    # The template of the stub is empty: the shortest prompt is one word.
    stub.fault = lambda seen, number: setattr(stub, "always_cached", 1 if number < 3 else 2)
    gateway_run("--paired", "--template", "chat", items=2)
    assert [record.proved_cold for record in arms(read_result(), "cold")] == [True, False]


def test_a_reset_that_is_refused_while_blocks_are_held_is_repeated(stub, gateway_run, read_result):
    stub.salts = False
    stub.reset_refusals = 2
    assert gateway_run("--paired", items=1).exit_code == 0
    assert read_result().paired.clean_pairs == 1


def test_with_several_items_in_flight_nothing_is_reset(stub, gateway_run, read_result):
    assert gateway_run("--paired", "--concurrency", 3, items=6).exit_code == 0
    assert stub.resets_done == 1, "the preflight tests the reset it finds; the replay uses salts"
    result = read_result()
    assert result.paired.clean_pairs == 6
    assert [record.item_id for record in result.requests] == sorted(record.item_id for record in result.requests)


def test_donors_go_to_the_donor_url(stub, start_stub, gateway_run):
    worker = start_stub()
    assert gateway_run("--donor-url", worker.url).exit_code == 0
    assert stub.ids() == ["warm"] * 3
    assert worker.ids() == ["donor0"] * 3


def test_headers_name_request_tenant_and_session(stub, gateway_run):
    gateway_run("--tenant", "acme", items=1)
    donor, warm = (seen.headers for seen in stub.served)
    assert donor["x-tenant-id"] == warm["x-tenant-id"] == "acme"
    assert donor["x-request-id"] != warm["x-request-id"]
    assert donor["x-session-id"] != warm["x-session-id"], "affinity to a session must not find the donor"


def test_a_conversation_keeps_its_session(stub, gateway_run):
    gateway_run(items=1, transform="multi_turn")
    donor, warm = (seen.headers["x-session-id"] for seen in stub.served)
    assert donor == warm


def test_no_request_id_is_part_of_another(stub, gateway_run):
    stub.fault = lambda seen, number: "500" if number % 2 else None
    gateway_run("--paired", "--exact", items=2, donors=2)
    ids = sorted(seen.headers["x-request-id"] for seen in stub.served)
    assert len(set(ids)) == len(ids)
    assert not any(one in other for one, other in pairwise(ids))


def test_sampling_is_greedy_and_ends_where_the_model_ends(stub, gateway_run):
    gateway_run("--max-output-tokens", 3, "--seed", 5, items=1)
    body = stub.served[-1].body
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0, 3, 5)
    assert "ignore_eos" not in body
    assert body["stream_options"] == {"include_usage": True}


def test_what_routers_say_is_kept(stub, gateway_run, read_result):
    stub.answer_headers = {"x-semblend-routing-path": "semantic", "X-Gateway-Route": "w2", "x-other": "no"}
    gateway_run(items=1)
    assert read_result().requests[0].route == {"x-semblend-routing-path": "semantic", "x-gateway-route": "w2"}


def test_answers_are_scored_with_the_given_threshold(stub, gateway_run, read_result):
    stub.answer = lambda seen: "answer 0 and much more text than was asked for"
    gateway_run("--quality-threshold", 0.9, items=2)
    first, second = (record.quality for record in read_result().requests)
    assert (first.token_recall, first.passed) == (1.0, True)
    assert (second.token_recall, second.passed) == (0.5, False)


def test_log_probabilities_are_kept_where_asked_for(gateway_run, read_result):
    gateway_run("--capture-logprobs", items=1)
    record = read_result().requests[0]
    assert len(record.output_logprobs) == record.output_tokens
    gateway_run(items=1)
    assert read_result().requests[0].output_logprobs is None


@pytest.mark.parametrize(("words", "requests"), [((), 1), (("--warmup-requests", 3), 3)])
def test_the_engine_is_warmed_up_with_text_that_no_item_knows(stub, gateway_run, words, requests):
    gateway_run("--max-output-tokens", 7, *words)
    ours = [seen for seen in stub.seen if "warmup" in seen.headers["x-request-id"]]
    assert len(ours) == requests
    assert ours[0].body["max_tokens"] == 7
    assert len(ours[0].prompt.split()) >= 28
    assert "fact" not in ours[0].prompt
    assert stub.seen.index(ours[-1]) < stub.seen.index(stub.served[0])


def test_waiting_after_donors_is_not_latency(gateway_run, read_result):
    gateway_run("--post-donor-delay-ms", 1500, items=1)
    assert read_result().requests[0].latency_ms < 1500


def test_without_an_audit_stream_nothing_is_known_to_be_confirmed(gateway_run, read_result):
    gateway_run("--paired")
    result = read_result()
    assert all(record.confirmed_tokens is None for record in result.requests)
    assert result.aggregate.backend_confirmed_block_rate is None


def test_the_result_says_who_served_it_and_how(stub, gateway_run, read_result):
    gateway_run("--paired", "--serve-command", "stub --fast")
    run = read_result().run
    assert run.kind == "live-gateway"
    assert run.serve_command == "stub --fast"
    assert run.engine["version"] == "1.2.3"
    assert run.engine["isolation"] == "reset and new cache salt"
    assert run.manifest_items == 3


@pytest.mark.parametrize("incremental", [False, True])
def test_sglang_is_replayed_through_its_own_api(
    start_stub, sembench, write_manifest, tmp_path, read_result, incremental
):
    stub = start_stub(incremental=incremental)
    words = ("--manifest", write_manifest(2), "--output", tmp_path / "result.json", "--base-url", stub.url)
    assert sembench("run-live-sglang", *words, "--model", "tiny", "--paired", "--exact").exit_code == 0
    assert {seen.path for seen in stub.served} == {"/generate"}
    assert all(seen.body["rid"] == seen.headers["x-request-id"] for seen in stub.served)
    result = read_result()
    assert result.run.kind == "live-sglang"
    assert result.run.engine["version"] == "4.5.6"
    assert result.paired.clean_pairs == 2
    record = result.requests[0]
    assert record.output.startswith("answer ")
    assert record.output.endswith(" is what it says")
    assert (record.prompt_tokens, record.output_tokens, record.engine_cached_tokens) == (28, 6, 0)


@pytest.mark.parametrize("command", ["run-live-gateway --gateway-url", "run-live-sglang --base-url"])
def test_only_the_first_items_are_served_where_so_many_are_asked_for(
    stub, sembench, write_manifest, tmp_path, read_result, command
):
    words = ("--manifest", write_manifest(4), "--output", tmp_path / "result.json", "--model", "tiny")
    done = sembench(*command.split(), stub.url, *words, "--max-items", 2, "--post-donor-delay-ms", 0)
    assert done.exit_code == 0, done.output
    result = read_result()
    assert [record.item_id for record in result.requests] == [f"{number:016x}" for number in range(2)]
    assert result.aggregate.items == 2
    assert len(stub.served) == 4


@pytest.mark.parametrize("command", ["run-live-gateway --gateway-url", "run-live-sglang --base-url"])
def test_the_model_that_is_named_is_the_one_that_is_asked(
    start_stub, sembench, write_manifest, tmp_path, read_result, command
):
    stub = start_stub(models=("other", "tiny"))
    words = ("--manifest", write_manifest(1), "--output", tmp_path / "result.json", "--post-donor-delay-ms", 0)
    done = sembench(*command.split(), stub.url, *words, "--model", "tiny")
    assert done.exit_code == 0, done.output
    assert {seen.body.get("model", "tiny") for seen in stub.seen} == {"tiny"}
    result = read_result()
    assert (result.run.engine["model"], result.config["model"]) == ("tiny", "tiny")
    refused = sembench(*command.split(), stub.url, *words, "--model", "absent")
    assert refused.exit_code == 3
    assert "--model absent is not served; served: other, tiny" in refused.output
