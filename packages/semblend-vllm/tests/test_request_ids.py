"""Audit records carry the id that the client sent, whatever vLLM puts around it."""

from __future__ import annotations

import pytest

from semblend_vllm.compat.request_ids import client_id


@pytest.mark.parametrize("sent", ["a", "sb-12ab34cd-0000000000000001-warm-001", "job-7-0-deadbeef", "cmpl-1"])
@pytest.mark.parametrize(
    "name", ["cmpl-{}-0-1a2b3c4d", "cmpl-{}-12-1a2b3c4d", "chatcmpl-{}-1a2b3c4d", "2_chatcmpl-{}-1a2b3c4d"]
)
def test_the_clients_id_is_found_in_vllms(name: str, sent: str) -> None:
    assert client_id(name.format(sent)) == sent


@pytest.mark.parametrize("name", ["0-1a2b3c4d", "mine", "resp_mine", "cmpl-mine"])
def test_another_name_stays_as_it_is(name: str) -> None:
    assert client_id(name) == name
