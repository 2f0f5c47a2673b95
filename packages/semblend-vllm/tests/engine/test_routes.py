"""Operators' routes in vLLM's server: a FastAPI application as vLLM makes one, and a real socket behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from semblend_core import TenantReport, tenant_of_salt
from semblend_core.control import ControlServer, TenantCommands
from semblend_vllm.routes import TenantRoutes

TOKEN = "a-token-of-the-operator"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(TOKEN + "\n")
    return path


@pytest.fixture
def held() -> dict[str, int]:
    return {tenant_of_salt("a"): 3, tenant_of_salt("b"): 2, tenant_of_salt(None): 1}


@pytest.fixture
def client(
    tmp_path: Path, token_file: Path, held: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    commands = TenantCommands(
        lambda tenant: TenantReport(donors=held.pop(tenant, 0)), lambda tenant: TenantReport(donors=held.get(tenant, 0))
    )
    server = ControlServer(tmp_path / "control", "scheduler", commands)
    yield attached(tmp_path / "control", token_file, monkeypatch)
    server.close()


def attached(folder: Path | str, token_file: Path | str, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setenv("SEMBLEND_CONTROL_DIR", str(folder))
    monkeypatch.setenv("SEMBLEND_VLLM_CONTROL_TOKEN_FILE", str(token_file))
    app = FastAPI()
    TenantRoutes().attach_router(app)
    return TestClient(app)


def donors(answer: Any) -> int:
    assert answer.status_code == 200, answer.text
    return sum(each["donors"] for each in answer.json()["engines"].values())


def test_a_tenant_is_shown_and_purged_and_others_are_not(client: TestClient, held: dict[str, int]) -> None:
    show, purge = "/semblend/tenants/show", "/semblend/tenants/purge"
    assert donors(client.post(show, json={"salt": "a"}, headers=HEADERS)) == 3
    purged = client.post(purge, json={"salt": "a"}, headers=HEADERS)
    assert donors(purged) == 3
    assert purged.json()["verified"]
    assert donors(client.post(show, json={"salt": "b"}, headers=HEADERS)) == 2
    assert donors(client.post(purge, json={"unsalted": True}, headers=HEADERS)) == 1
    assert held == {tenant_of_salt("b"): 2}


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {TOKEN}x"}])
def test_without_the_token_nothing_happens(client: TestClient, held: dict[str, int], headers: dict[str, str]) -> None:
    assert client.post("/semblend/tenants/purge", json={"salt": "a"}, headers=headers).status_code == 401
    assert len(held) == 3


@pytest.mark.parametrize(
    "body", [b"", b"no json", b"[]", b"{}", b'{"salt": ""}', b'{"salt": 1}', b'{"salt": null}', b'{"unsalted": false}']
)
def test_a_body_that_is_not_understood_is_refused(client: TestClient, held: dict[str, int], body: bytes) -> None:
    answer = client.post("/semblend/tenants/purge", content=body, headers=HEADERS)
    assert answer.status_code == 400
    assert "salt" in answer.json()["error"]
    assert len(held) == 3


def test_no_engine_is_said_to_be_there(tmp_path: Path, token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = attached(tmp_path / "nobody", token_file, monkeypatch)
    answer = client.post("/semblend/tenants/show", json={"salt": "a"}, headers=HEADERS)
    assert answer.status_code == 503
    assert "no engine was started with it" in answer.json()["error"]


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda path: path.chmod(0o644), "chmod 600"),
        (lambda path: path.write_text("short"), "at least 16"),
        (lambda path: path.unlink(), "No such file"),
    ],
)
def test_a_token_that_is_none_leaves_the_routes_off(
    tmp_path: Path,
    token_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    prepare: Callable[[Path], object],
    says: str,
) -> None:
    prepare(token_file)
    client = attached(tmp_path / "control", token_file, monkeypatch)
    assert client.post("/semblend/tenants/show", json={"salt": "a"}, headers=HEADERS).status_code == 404
    assert says in caplog.text


@pytest.mark.parametrize(("folder", "token"), [("", "there"), ("there", "")])
def test_without_its_settings_there_are_no_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, folder: str, token: str
) -> None:
    client = attached(folder, token, monkeypatch)
    assert client.post("/semblend/tenants/show", json={"salt": "a"}).status_code == 404
    assert "SemBlend's routes are off: set SEMBLEND_" in caplog.text
