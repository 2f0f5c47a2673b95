"""The server that the other tests in this folder replay against."""

import httpx


def test_the_server_runs_the_model_and_reports_its_version(vllm_server):
    models = httpx.get(f"{vllm_server.base_url}/v1/models", timeout=None).json()
    assert [model["id"] for model in models["data"]] == [vllm_server.model]
    assert httpx.get(f"{vllm_server.base_url}/version", timeout=None).json()["version"].startswith("0.32.0")
