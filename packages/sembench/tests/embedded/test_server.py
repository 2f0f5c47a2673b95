"""What the server counts as reused is what is in the request's KV."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sembench.embedded.comparison import ColdTruth, greedy_text
from sembench.embedded.config import EmbeddedConfig
from sembench.embedded.model import EmbeddedModel
from sembench.embedded.policies import chooser_of
from sembench.embedded.prefix_cache import DonorMemory, PrefixCache
from sembench.embedded.server import Server
from sembench.schema import ManifestItem
from semblend_core import Settings, as_token_ids, create_provider
from semblend_core.kv import DonorKv


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> EmbeddedModel:
    return EmbeddedModel.open(EmbeddedConfig(model=str(tiny_model)))


@pytest.fixture
def server(model: EmbeddedModel) -> Iterator[Server]:
    settings = Settings(lookup_budget_ms=1000.0)
    # Seams only: a correction would also change the tokens that are reused.
    choose = chooser_of(EmbeddedConfig(policy="seam_head", budget=0.1))
    with closing(create_provider(settings, engine="test")) as provider:
        yield Server(model, provider, choose, block_size=16, room=32)


def keep(server: Server, model: EmbeddedModel, donor_id: str, text: str) -> DonorKv:
    tokens = model.encode(text)
    kv = model.engine.capture(model.engine.prefill(tokens).workspace, tokens.size)
    server.keep_donor(donor_id, tokens, kv)
    return kv


def test_confirmed_tokens_are_those_whose_kv_is_the_donors(
    server: Server, model: EmbeddedModel, items: list[ManifestItem]
) -> None:
    (item,) = [each for each in items if each.transform == "multi_donor_composite"]
    kept = {donor.donor_id: keep(server, model, donor.donor_id, donor.text) for donor in item.donor_prompts}
    prompt = model.encode(item.recipient_prompt)
    served = server.serve("request", prompt)
    assert served.plan is not None
    moved = np.zeros(prompt.size, np.bool_)
    for span in served.plan.spans:
        ours = served.prefill.workspace.values[-1, span.target_start : span.target_end]
        values = kept[span.donor_id].values
        assert values is not None
        theirs = values[-1, span.donor_start : span.donor_end]
        moved[span.target_start : span.target_end] = (ours == theirs).all(-1).all(-1).numpy()
    assert moved.sum() == served.prefill.reused_tokens
    assert served.outcome is not None
    assert served.outcome.confirmed_tokens == moved.sum()


def test_what_is_published_of_a_request_with_reuse_ends_before_the_first_relocated_token(
    server: Server, model: EmbeddedModel, items: list[ManifestItem]
) -> None:
    (item,) = [each for each in items if each.transform == "instruction_variant"]
    (donor,) = item.donor_prompts
    keep(server, model, "donor", donor.text)
    # A long front that no donor has is computed exactly, so that the engine may keep it.
    prompt = model.encode("A front of its own, again and again. " * 10 + item.recipient_prompt)
    served = server.serve("first", prompt)
    server.publish(served)
    again = server.serve("second", prompt, reuse=False)
    assert served.plan is not None
    first = served.plan.first_approximate_token
    assert first - 16 < again.prefill.exact_prefix_tokens <= first


def test_a_prefix_too_short_to_pay_is_computed(server: Server, model: EmbeddedModel) -> None:
    document = "Some words that stand in both prompts, to be found by their beginning. " * 6
    keep(server, model, "donor", document)
    prompt = model.encode(document)
    for share, used in ((0.05, False), (0.5, True)):
        own = prompt[: int(share * prompt.size)]
        other = as_token_ids([*own, *(prompt[own.size :] + 1) % 250])
        served = server.serve(f"share {share}", other, reuse=False)
        assert (served.prefill.exact_prefix_tokens > 0) == used
        assert served.prefill.exact_prefix_tokens + served.prefill.computed_tokens == prompt.size


def test_divergence_is_what_its_formulas_say(model: EmbeddedModel) -> None:
    engine = model.engine
    cold = engine.prefill(model.encode("a quiet harbor at dusk, and nothing else to see"))
    other = engine.prefill(model.encode("a noisy harbor at noon, and much else to listen"))
    text = as_token_ids(greedy_text(engine, cold, 8, at_least=8).beyond)
    found = ColdTruth(engine, cold, text).compare(other)

    p, q = (torch.log_softmax(engine.score(each, text).double(), -1).numpy() for each in (cold, other))
    kl = (np.exp(p) * (p - q)).sum(-1)
    places = np.arange(text.size), text
    assert found.kl_mean == pytest.approx(kl.mean(), rel=1e-4)
    assert found.kl_max == pytest.approx(kl.max(), rel=1e-4)
    assert found.ppl_ratio == pytest.approx(np.exp(-q[places].mean()) / np.exp(-p[places].mean()), rel=1e-4)
    assert found.top1 == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean())
    assert ColdTruth(engine, cold, text).compare(cold).kl_max < 1e-6


def test_greedy_text_is_the_engines_and_goes_on_past_the_answer_where_asked(
    model: EmbeddedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = model.engine
    prefill = engine.prefill(model.encode("one two three"))
    without_end = engine.decode(prefill, 12, stop_ids=())
    end = without_end[3]
    monkeypatch.setattr(type(engine), "end_of_text", property(lambda self: {end}))
    answer = without_end[: without_end.index(end)]
    said = greedy_text(engine, prefill, 8, at_least=12)
    assert said.tokens == answer
    assert said.beyond == without_end
    assert greedy_text(engine, prefill, 8).tokens == answer
    monkeypatch.setattr(type(engine), "end_of_text", property(lambda self: set()))
    assert greedy_text(engine, prefill, 5).tokens == without_end[:5]


def fake_kv(tokens: int) -> DonorKv:
    return DonorKv(torch.zeros(1, tokens, 1, 2), torch.zeros(1, tokens, 1, 2))


@given(
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    held=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), max_size=4),
    block=st.integers(1, 5),
)
def test_the_prefix_cache_gives_the_longest_whole_block_prefix_and_leaves_a_token(
    prompt: list[int], held: list[list[int]], block: int
) -> None:
    cache = PrefixCache(block)
    for tokens in held:
        cache.publish(as_token_ids(tokens), fake_kv(len(tokens)))
    length, kv = cache.match(as_token_ids(prompt))
    fitting = [
        size
        for size in range(0, len(prompt), block)
        if any(len(tokens) >= size and tokens[:size] == prompt[:size] for tokens in held)
    ]
    assert length == max(fitting, default=0)
    assert (kv is None) == (length == 0)


def test_donor_memory_computes_again_only_what_it_let_go() -> None:
    computed: list[int] = []
    memory = DonorMemory(max_bytes=2 * fake_kv(10).nbytes)

    def get(number: int) -> None:
        def compute() -> DonorKv:
            computed.append(number)
            return fake_kv(10)

        memory.get(as_token_ids([number]), compute)

    for number in (1, 2, 1, 3, 1, 2):
        get(number)
    assert computed == [1, 2, 3, 2]
