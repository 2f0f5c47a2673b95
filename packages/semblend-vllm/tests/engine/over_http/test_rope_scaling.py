"""A model whose rotary embedding is scaled as Llama 3's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Short, so that most frequencies are scaled: as they are meant to be used, few would show in a short prompt.
    "original_max_position_embeddings": 512,
}
OFF = {"kv_transfer_params": {"semblend": "off"}}
DOCUMENT = " ".join(f"Mile {n} of the road has {n * 17 % 29 + 2} trees and {n * 5 % 7 + 1} inns." for n in range(40))
DONOR = f"A survey.\n\n{DOCUMENT}\n\nQuestion: how long is the road?\nAnswer:"
RECIPIENT = f"System: you advise travellers, in a few words.\n\n{DOCUMENT}\n\nQuestion: where to rest?\nAnswer:"
LARGEST_KL = 0.05
"""One document behind a new instruction."""


@pytest.fixture(scope="module")
def server(new_server: Callable[..., Any]) -> Iterator[Any]:
    with new_server({}, "--hf-overrides", json.dumps({"rope_parameters": LLAMA3})) as started:
        yield started


def test_what_was_moved_by_the_scaled_frequencies_answers_as_cold(server: Any, divergence: Any) -> None:
    """The self-test compares the engine's own K with moved ones: with other frequencies nothing would be loaded."""
    server.keep(DONOR)
    reused = server.reused(RECIPIENT)
    cold = server.reused(RECIPIENT, cache_salt="cold", **OFF)
    assert reused.confirmed_tokens > 0.6 * reused.prompt_tokens, reused.declined
    assert cold.cached_tokens == 0
    assert divergence(cold, reused) < LARGEST_KL


def test_the_scaling_was_in_effect(server: Any) -> None:
    """Or the test above would say nothing: the model as it was trained answers otherwise."""
    from semblend_core.reference import ReferenceEngine
    from semblend_core.testing import shallow_model_folder

    asked = {"model": server.model, "prompt": RECIPIENT}
    tokens = server.client.post("/tokenize", json=asked).json()["tokens"]
    unscaled = ReferenceEngine.load(shallow_model_folder()).prefill(np.array(tokens, np.int32)).logits.log_softmax(-1)
    first = server.reused(RECIPIENT, cache_salt="scaled", **OFF).logprobs[0]
    furthest = max(abs(value - float(unscaled[int(token.split(":")[1])])) for token, value in first.items())
    assert furthest > 0.1
