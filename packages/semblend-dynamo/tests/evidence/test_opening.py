"""Evidence as its settings describe it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from semblend_core import Namespace, as_token_ids
from semblend_core.settings import SettingError
from semblend_dynamo.evidence import Document, Evidence, open_evidence
from semblend_dynamo.settings import EvidenceSettings


def test_the_environment_says_which_embedder_and_how_similar(namespace: Namespace) -> None:
    asked = {"SEMBLEND_EMBEDDER": "jaccard", "SEMBLEND_MIN_SIMILARITY": "0.99"}
    evidence = open_evidence(EvidenceSettings.from_env(asked))
    assert evidence is not None
    evidence.offer(namespace, "same", Document(as_token_ids(range(1000))))
    evidence.offer(namespace, "alike", Document(as_token_ids(range(100, 1100))))
    evidence.ask("r", namespace, Document(as_token_ids(range(1000))))
    assert evidence.wait_idle(30)
    # An ask is served before the offers that wait: it is asked again when they are in.
    evidence.ask("r", namespace, Document(as_token_ids(range(1000))))
    assert evidence.wait_idle(30)
    assert evidence.poll("r") == (Evidence("same", 1.0, "jaccard"),)
    assert evidence.close(30)


def test_none_is_no_worker() -> None:
    assert open_evidence(EvidenceSettings(embedder="none")) is None


def test_a_wrong_setting_is_refused_as_core_refuses_its_own() -> None:
    with pytest.raises(SettingError) as caught:
        EvidenceSettings.from_env({"SEMBLEND_EMBEDDER": "bert", "SEMBLEND_EMBED_QUEUE": "0"})
    assert [each.variable for each in caught.value.wrong] == ["SEMBLEND_EMBEDDER", "SEMBLEND_EMBED_QUEUE"]
    assert "allowed: minilm, jaccard, none" in str(caught.value)


def test_evidence_names_a_donor_and_a_similarity() -> None:
    with pytest.raises(ValueError, match="donor_id must not be empty"):
        Evidence("", 0.5, "jaccard")
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="similarity is in"):
            Evidence("d", wrong, "jaccard")


def test_importing_evidence_imports_no_optional_dependency() -> None:
    program = (
        "import sys, semblend_dynamo.evidence; "
        "sys.exit(bool({'onnxruntime', 'tokenizers', 'usearch', 'torch'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
