"""Who can be asked by ``--provider``, and what is said when it cannot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sembench.offline.peer import PYTHON_VARIABLE, find_equal_spans, open_peer
from sembench.offline.providers import ExactBlockProvider, ProviderOptions, open_provider
from sembench.schema import InputError
from semblend_core import DeclineReason, DonorOffer, LookupRequest, Namespace, SemanticLookupProvider, Span

NAMESPACE = Namespace(
    model="m", revision="1", tokenizer="t", dtype="none", kv_layout="none", block_size=4, adapter=None, salt="tenant"
)


def offer(provider: SemanticLookupProvider, donor_id: str, tokens: list[int]) -> DeclineReason | None:
    return provider.offer_donor(DonorOffer(donor_id, NAMESPACE, np.array(tokens, np.int32))).reason


def request(tokens: list[int]) -> LookupRequest:
    return LookupRequest("r", NAMESPACE, np.array(tokens, np.int32))


def test_core_runs_with_its_settings_and_without_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMBLEND_MIN_SPAN_TOKENS", "32")
    provider, describe = open_provider("core", ProviderOptions(fuzzy=True))
    provider.close()
    settings = describe()["settings"]
    assert settings["min_span_tokens"] == 32
    assert settings["fuzzy_chunks"] is True
    assert settings["lookup_budget_ms"] > 60_000


def test_core_has_no_similarity_to_set() -> None:
    with pytest.raises(InputError, match="--min-similarity is the peer's"):
        open_provider("core", ProviderOptions(min_similarity=0.5))


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMBLEND_MIN_SPAN_TOKENS", "many")
    with pytest.raises(InputError, match="SEMBLEND_MIN_SPAN_TOKENS"):
        open_provider("core", ProviderOptions())


def make_settled(settings: Any, block_size: int) -> SemanticLookupProvider:
    assert settings.fuzzy_chunks is True
    return ExactBlockProvider(block_size)


def make_text() -> str:
    return "no provider"


def make_nothing() -> SemanticLookupProvider:
    raise OSError("no licence")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "a_users_module", sys.modules[__name__])
    return "a_users_module"


def test_a_factory_gets_the_arguments_that_it_has_names_for(module: str) -> None:
    provider, describe = open_provider(f"{module}:make_settled", ProviderOptions(block_size=8, fuzzy=True))
    assert isinstance(provider, ExactBlockProvider)
    assert describe()["class"] == "ExactBlockProvider"
    assert describe()["settings"]["fuzzy_chunks"] is True
    assert isinstance(
        open_provider("semblend_core.testing:ReferenceProvider", ProviderOptions())[0], SemanticLookupProvider
    )


def test_a_module_beside_the_user_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_me.py").write_text("from semblend_core.testing import ReferenceProvider as make\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert isinstance(open_provider("beside_me:make", ProviderOptions())[0], SemanticLookupProvider)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("lmcache", "is none of core, exact, peer, nor module:attr"),
        ("no_such_module:make", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("a_users_module:absent", "AttributeError"),
        ("a_users_module:NAMESPACE", "is not callable"),
        ("a_users_module:make_text", "returned str, not a SemanticLookupProvider"),
        ("a_users_module:make_nothing", "the factory raised OSError: no licence"),
    ],
)
def test_a_provider_that_is_none_is_refused(module: str, name: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as refusal:
        open_provider(name, ProviderOptions())
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize("options", [ProviderOptions(fuzzy=True), ProviderOptions(min_similarity=0.5)])
def test_the_exact_baseline_has_no_similarity(options: ProviderOptions) -> None:
    with pytest.raises(InputError, match="leave out --min-similarity and --fuzzy"):
        open_provider("exact", options)


def test_the_exact_baseline_follows_a_donor_as_far_as_it_goes() -> None:
    provider = ExactBlockProvider(4)
    offer(provider, "other", [9, 9, 9, 9, 5, 6, 7, 8])
    offer(provider, "whole", [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13])
    plan = provider.lookup(request([1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14])).plan
    assert plan is not None
    assert plan.spans == (Span(0, "whole", 0, 12),)


def test_the_exact_baseline_keeps_the_contract_on_donors() -> None:
    provider = ExactBlockProvider(4)
    assert provider.lookup(request([1, 2, 3, 4, 5])).reason is DeclineReason.NO_DONORS
    assert offer(provider, "d", [1, 2, 3]) is DeclineReason.DONOR_TOO_SHORT
    assert offer(provider, "d", [1, 2, 3, 4]) is None
    assert offer(provider, "d", [1, 2, 3, 5]) is DeclineReason.DUPLICATE_DONOR
    assert offer(provider, "e", [6, 7, 8, 9]) is None
    assert provider.lookup(request([1, 2, 3, 4, 5])).plan is not None
    assert provider.forget_donor(NAMESPACE, "d")
    assert not provider.forget_donor(NAMESPACE, "d")
    assert provider.lookup(request([1, 2, 3, 4, 5])).reason is DeclineReason.NO_SPANS
    provider.check_integrity()
    provider.close()
    assert provider.lookup(request([6, 7, 8, 9])).reason is DeclineReason.SHUT_DOWN


def test_only_equal_tokens_of_the_peer_become_spans() -> None:
    donors = {(NAMESPACE.digest, "a"): np.array([1, 2, 9, 4, 5], np.int32)}
    asked = request([1, 2, 3, 4, 5, 6])
    runs = [(0, "a", 0, 5), (4, "a", 4, 1), (5, "a", 5, 1), (5, "gone", 0, 1)]
    spans, unequal = find_equal_spans(runs, asked, donors)
    # Position 2 differs, position 4 was proposed twice, and position 5 is beyond the donor.
    assert spans == [Span(0, "a", 0, 2), Span(3, "a", 3, 2)]
    assert unequal == 2


def test_without_the_peers_python_the_two_commands_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    for python in (None, Path("/no/such/python")):
        with pytest.raises(InputError, match=r"(?s)python3 -m venv .*pip install semblend==0.3.25") as refusal:
            open_peer(python, None, {})
        assert refusal.value.exit_code == 2


def test_a_python_without_the_peer_is_refused_with_what_it_said() -> None:
    # Ours has a semblend_core too, and it is not the peer's.
    with pytest.raises(InputError, match=r"(?s)process ended with code 1: .*pip install semblend==0.3.25"):
        open_peer(Path(sys.executable), None, {})


def test_the_peer_finds_a_moved_document(peer_python: Path) -> None:
    document = list(range(1000, 1600))
    with_header = [*range(50), *document]
    peer = open_peer(peer_python, 0.5, {})
    try:
        text = " ".join(map(str, document))
        peer.note_text("d", text)
        assert offer(peer, "d", document) is None
        peer.note_text("r", text)
        result = peer.lookup(request(with_header))
        assert result.plan is not None
        assert sum(span.length for span in result.plan.spans) > 500
        assert result.elapsed_us is not None
        assert peer.forget_donor(NAMESPACE, "d")
        assert peer.lookup(request(with_header)).plan is None
        assert peer.description["version"] == "0.3.25"
        assert peer.description["options"] == {"min_similarity": 0.5}
        assert "a miss by its design" in peer.description["note"]
        assert (peer.description["embedder"] == "minilm") != ("without its embedding model" in peer.description["note"])
    finally:
        peer.close()


def test_a_peer_that_dies_ends_the_run(peer_python: Path) -> None:
    peer = open_peer(peer_python, None, {})
    peer._pipe._process.kill()
    with pytest.raises(InputError, match="the peer's process ended with code -9"):
        peer.lookup(request([1, 2, 3, 4]))
