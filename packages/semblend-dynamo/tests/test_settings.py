"""Settings of the public package ``semblend`` that mean something here."""

from __future__ import annotations

import pytest

from semblend_core.settings import SettingError
from semblend_dynamo.settings import EvidenceSettings


@pytest.mark.parametrize("name", ["onnx_gpu", "onnx-gpu", "ONNX_GPU"])
def test_their_name_for_minilm_on_a_gpu_is_understood(name: str) -> None:
    settings = EvidenceSettings.from_env({"SEMBLEND_EMBEDDER": name})
    assert (settings.embedder, settings.embed_provider) == ("minilm", "cuda")


def test_where_it_runs_can_still_be_said() -> None:
    settings = EvidenceSettings.from_env({"SEMBLEND_EMBEDDER": "onnx_gpu", "SEMBLEND_EMBED_PROVIDER": "cpu"})
    assert settings.embed_provider == "cpu"
    assert EvidenceSettings.from_env({"SEMBLEND_EMBED_DEVICE": "cuda"}).embed_provider == "cuda"


def test_an_embedder_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(SettingError, match="SEMBLEND_EMBEDDER='jina' is not allowed; allowed: minilm, jaccard, none"):
        EvidenceSettings.from_env({"SEMBLEND_EMBEDDER": "jina"})
