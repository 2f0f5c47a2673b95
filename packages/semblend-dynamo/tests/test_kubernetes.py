"""The manifests in the documentation are what a cluster accepts, and name settings that exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from semblend_dynamo.proxy.settings import ProxySettings
from semblend_dynamo.router.settings import RouterSettings

FOLDER = Path(__file__).parents[3] / "docs" / "kubernetes"
MANIFESTS = [
    pytest.param(document, id=f"{path.stem}-{document['kind']}")
    for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


def test_there_are_manifests() -> None:
    assert len(MANIFESTS) == 9


@pytest.mark.parametrize("manifest", MANIFESTS)
@pytest.mark.parametrize("version", ["1.30", kubernetes_validate.latest_version()])
def test_the_schema_accepts_it(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schema_check_refuses_what_is_wrong() -> None:
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"portz": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def variables(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (str(name) for name in value if str(name).startswith("SEMBLEND_"))
        name = value.get("name")
        if isinstance(name, str) and name.startswith("SEMBLEND_"):
            yield name
        for each in value.values():
            yield from variables(each)
    elif isinstance(value, list):
        for each in value:
            yield from variables(each)


def test_every_setting_in_them_exists() -> None:
    declared = {each.variable for group in (RouterSettings, ProxySettings) for each in group.declarations()}
    named = {name for param in MANIFESTS for name in variables(param.values[0])}
    assert named - declared == {"SEMBLEND_AUDIT_PATH"}
    assert "SEMBLEND_ROUTER_REPLICAS" in named
