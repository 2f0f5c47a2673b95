"""Settings that cannot be worked with are refused at the start, by name; the published names work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from semblend_core.settings import SettingError
from semblend_dynamo.gateway.secret_file import ConfigurationError
from semblend_dynamo.router.building import build_router
from semblend_dynamo.router.settings import RouterSettings

ONE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "there are no replicas: set SEMBLEND_ROUTER_REPLICAS=http://host:port"),
        ({"replicas": " , "}, "there are no replicas"),
        ({"replicas": "localhost:1"}, "SEMBLEND_ROUTER_REPLICAS: 'localhost:1' is no address"),
        ({"replicas": "ftp://a"}, "is no address of the form"),
        ({"replicas": "http://user:pw@a:1"}, "holds credentials"),
        ({"replicas": f"{ONE},{ONE}/v1"}, "the address 'http://127.0.0.1:1' is there twice"),
        ({"replicas": f"a={ONE},a=http://b:1"}, "the name 'a' is there twice"),
        ({"replicas": f"a b={ONE}"}, "SEMBLEND_ROUTER_REPLICAS: 'a b' is no name"),
        ({"replicas": f"a\r\nx-b: c={ONE}"}, "is no name"),
        (
            {"replicas": ONE, "likeness": True},
            "SEMBLEND_ROUTER_LIKENESS has no effect while SEMBLEND_PLACEMENT_LIKENESS",
        ),
        ({"replicas": ONE, "tenant_header": "x tenant"}, "SEMBLEND_ROUTER_TENANT_HEADER='x tenant' is no header"),
        ({"replicas": ONE, "tenant_header": ""}, "is no header's name, such as x-tenant-id"),
        ({"replicas": ONE, "tenant_header": "x-m€"}, "is no header's name"),
        ({"replicas": ONE, "probe_path": "health"}, "SEMBLEND_ROUTER_PROBE_PATH='health' is no path, such as /health"),
        ({"replicas": ONE, "gateway": ONE}, "SEMBLEND_ROUTER_GATEWAY and SEMBLEND_ROUTER_REPLICAS are both set"),
        ({"gateway": "nonsense"}, "SEMBLEND_ROUTER_GATEWAY: 'nonsense' is no address"),
        ({"replicas": ONE, "salt": "tenant"}, "SEMBLEND_ROUTER_SALT=tenant needs SEMBLEND_ROUTER_SALT_KEY_FILE"),
        ({"replicas": ONE, "salt": "tenant", "salt_key_file": "/not/there"}, "cannot be read"),
        ({"replicas": ONE, "tokenizer": "/not/there"}, "SEMBLEND_ROUTER_TOKENIZER='/not/there' is no tokenizer"),
        ({"replicas": ONE, "type_weights": "system=x"}, "SEMBLEND_ROUTER_TYPE_WEIGHTS: 'system=x' is no weight"),
        ({"replicas": ONE, "type_weights": "poem=1"}, "'poem=1' is no weight"),
        ({"replicas": ONE, "type_weights": "user=-1"}, "'user=-1' is no weight"),
        ({"replicas": ONE, "operator_token_file": "/not/there"}, "SEMBLEND_ROUTER_OPERATOR_TOKEN_FILE"),
    ],
)
def test_what_cannot_work_is_refused_with_the_setting_and_the_fix(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("(", r"\(")):
        build_router(RouterSettings(**settings))


def test_secrets_that_others_may_read_are_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("long enough to be a secret")
    key.chmod(0o644)
    with pytest.raises(ConfigurationError, match="can be read by others: run `chmod 600`"):
        build_router(RouterSettings(replicas=ONE, salt="tenant", salt_key_file=str(key)))
    key.chmod(0o600)
    key.write_text("short")
    with pytest.raises(ConfigurationError, match="no secret of at least 16"):
        build_router(RouterSettings(replicas=ONE, salt="tenant", salt_key_file=str(key)))


def test_the_published_names_are_read() -> None:
    published = {"SEMANTICKV_REPLICAS": "http://a:1,http://b:2", "SEMANTICKV_ROUTING_POLICY": "prefix_hash"}
    settings = RouterSettings.from_env(published)
    assert (settings.replicas, settings.policy, settings.port) == ("http://a:1,http://b:2", "prefix_hash", 8020)
    ours = RouterSettings.from_env({**published, "SEMBLEND_ROUTER_POLICY": "round_robin"})
    assert ours.policy == "round_robin"
    with pytest.raises(SettingError, match="SEMANTICKV_ROUTING_POLICY='best'"):
        RouterSettings.from_env({"SEMANTICKV_ROUTING_POLICY": "best"})


def start(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SEMBLEND_R", "SEMANTICKV"))}
    return subprocess.run(
        [sys.executable, *command], env={**kept, **variables}, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_command_says_what_is_missing() -> None:
    ended = start("-c", "from semblend_dynamo.router.application import main; main()")
    assert ended.returncode == 1
    assert ended.stderr.startswith("semblend-router: there are no replicas: set SEMBLEND_ROUTER_REPLICAS")
    assert "Traceback" not in ended.stderr


def test_the_settings_need_no_web_framework() -> None:
    """The reference page and engines read them where the extra is not installed."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(('fastapi', 'uvicorn', 'httpx', 'starlette')));"
    reads = "import semblend_dynamo.router.settings, semblend_dynamo.proxy.settings"
    assert start("-c", f"{blocked} {reads}").stderr == ""


def test_uvicorn_serves_the_published_way(stub_process: Any) -> None:
    from semblend_core.testing import wait_until

    stub = stub_process()
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "semblend_dynamo.router:app", "--port", str(port)]
    variables = {"SEMANTICKV_REPLICAS": stub.url, "SEMANTICKV_ROUTING_POLICY": "semantic_locality"}
    process = subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.DEVNULL)
    try:

        def answers() -> bool:
            assert process.poll() is None
            try:
                return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
            except httpx.TransportError:
                return False

        wait_until(answers, "the router answers")
        body = {"model": "stub", "messages": [{"role": "user", "content": "CONTEXT: a document\n\nUSER: read it"}]}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, trust_env=False)
        assert answer.status_code == 200
    finally:
        process.terminate()
        process.wait()
