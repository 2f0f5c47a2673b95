"""From the caller's identity to the engine's salt, by the operator's rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semblend_core.testing import wait_until
from semblend_dynamo.gateway.identity import Caller, Salting


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_text("a key that nobody guesses")
    path.chmod(0o600)
    return str(path)


def salts(served: Any) -> list[Any]:
    return [body.get("cache_salt") for body in served.seen[0].bodies]


def test_by_default_the_clients_salt_goes_through(fleet: Any) -> None:
    served = fleet(1)
    served.chat("hi", cache_salt="mine", extra_key="other")
    served.chat("hi")
    assert served.seen[0].bodies[0]["extra_key"] == "other"
    assert salts(served) == ["mine", None]


def test_a_tenant_becomes_a_salt_that_no_client_can_choose(fleet: Any, key_file: str) -> None:
    served = fleet(1, salt="tenant", salt_key_file=key_file)
    for tenant in ("a", "a", "b", ""):
        served.chat("hi", headers={"x-tenant-id": tenant}, cache_salt="forged", extra_key="forged")
    a, again, b, nobody = salts(served)
    assert a == again != b
    assert nobody is None
    assert len(a) == 64
    assert all("extra_key" not in body for body in served.seen[0].bodies)
    assert "a key that nobody guesses" not in served.client.get("/status.json").text


def test_tenants_with_long_names_are_told_apart(fleet: Any, key_file: str) -> None:
    """No tenant may find another's prompts because their names begin alike."""
    long = "t" * 300
    served = fleet(1, salt="tenant", salt_key_file=key_file)
    for tenant in (f"{long}a", f"{long}b", f"{long}a"):
        served.chat("hi", headers={"x-tenant-id": tenant})
    a, b, again = salts(served)
    assert a == again != b
    by_name = fleet(1)
    text = " ".join(f"word{n}" for n in range(200))
    by_name.chat(text, headers={"x-tenant-id": f"{long}a"})
    wait_until(lambda: by_name.status()["donors"] == 1, "it is remembered", every_s=0.01)
    reasons = [
        by_name.chat(f"{n} {text}", headers={"x-tenant-id": f"{long}{tenant}"}).headers["x-semblend-routing-reason"]
        for n, tenant in enumerate("ba")
    ]
    assert reasons == ["no_donors", "within_margin"]


def test_salts_that_look_alike_when_joined_are_told_apart() -> None:
    caller = Caller("r", "", "")
    circles = {
        Salting("pass").circle_of(asked, caller)
        for asked in ({"cache_salt": "a\0b"}, {"cache_salt": "a", "extra_key": "b"}, {"extra_key": "a\0b"})
    }
    assert len(circles) == 3


def test_a_long_salt_is_not_kept(fleet: Any) -> None:
    """Sessions are remembered by the circle of their tenant: a salt of megabytes must not be part of that."""
    served = fleet(1)
    served.chat("hi", cache_salt="s" * 1_000_000, headers={"x-session-id": "one"})
    (key,) = served.router.sessions._replicas
    assert len(str(key)) < 1000


def test_an_api_key_can_be_the_identity(fleet: Any, key_file: str) -> None:
    served = fleet(1, salt="api_key", salt_key_file=key_file)
    for key in ("one", "one", "two"):
        served.chat("hi", headers={"authorization": f"Bearer {key}", "x-tenant-id": "forged"})
    one, again, two = salts(served)
    assert one == again != two
    assert "one" not in one
    assert served.seen[0].headers[0]["authorization"] == "Bearer one"


def test_salts_can_be_removed_and_named_otherwise(fleet: Any, key_file: str) -> None:
    removed = fleet(1, salt="remove")
    removed.chat("hi", cache_salt="mine", extra_key="mine")
    assert not {"cache_salt", "extra_key"} & set(removed.seen[0].bodies[0])
    renamed = fleet(1, salt="tenant", salt_key_file=key_file, salt_field="extra_key")
    renamed.chat("hi", cache_salt="mine")
    assert len(renamed.seen[0].bodies[0]["extra_key"]) == 64
    assert "cache_salt" not in renamed.seen[0].bodies[0]


def test_placement_follows_the_salt_that_the_engine_sees(fleet: Any, key_file: str) -> None:
    """Whose KV an engine keeps apart, the router keeps apart too: a forged tenant header brings nothing."""
    served = fleet(2, salt="api_key", salt_key_file=key_file)
    text = " ".join(f"word{n}" for n in range(200))
    served.chat(text, headers={"authorization": "Bearer one"})
    from semblend_core.testing import wait_until

    wait_until(lambda: served.status()["donors"] == 1, "it is remembered", every_s=0.01)
    ours = served.chat(f"1 {text}", headers={"authorization": "Bearer one", "x-tenant-id": "other"})
    theirs = served.chat(f"2 {text}", headers={"authorization": "Bearer two"})
    assert ours.headers["x-semblend-routing-path"] == "semantic_locality"
    assert theirs.headers["x-semblend-routing-path"] == "fallback"


def test_the_tenants_header_has_the_operators_name(fleet: Any) -> None:
    served = fleet(1, tenant_header="X-Team")
    served.chat("hi", headers={"x-team": "blue", "x-tenant-id": ""})
    served.chat("hi", headers={"x-tenant-id": "blue"})
    newest, oldest = served.status()["decisions"]
    assert oldest["tenant"]
    assert newest["tenant"] == ""
