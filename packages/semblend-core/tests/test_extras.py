"""Optional dependencies stay optional: imported when used, with an error that says what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from semblend_core import MissingExtraError, require_extra

OPTIONAL = [
    "torch",
    "triton",
    "transformers",
    "onnxruntime",
    "tokenizers",
    "usearch",
    "prometheus_client",
    "pytest",
    "hypothesis",
]


def test_a_missing_extra_is_named_with_what_to_install() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'semblend-core\[onnx\]'") as refusal:
        require_extra("no_such_module_of_ours", distribution="semblend-core", extra="onnx")
    assert refusal.value.name == "no_such_module_of_ours"
    assert isinstance(refusal.value, ImportError)


def test_a_missing_submodule_is_the_extras_too() -> None:
    with pytest.raises(MissingExtraError, match=r"\[gpu\]"):
        require_extra("no_such_package.part", distribution="semblend-core", extra="gpu")


def test_what_is_installed_is_imported() -> None:
    assert require_extra("json", distribution="semblend-core", extra="none") is json


def test_what_an_installed_module_lacks_is_not_blamed_on_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "semblend_test_half_installed.py").write_text("import no_such_dependency_of_it\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency_of_it") as refusal:
        require_extra("semblend_test_half_installed", distribution="semblend-core", extra="onnx")
    assert not isinstance(refusal.value, MissingExtraError)


@pytest.mark.parametrize("module", ["semblend_core", "semblend_core.testing"])
def test_importing_core_imports_no_optional_dependency(module: str) -> None:
    program = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    roots = {name.split(".")[0] for name in json.loads(run.stdout)}
    assert "semblend_core" in roots
    assert sorted(roots & set(OPTIONAL)) == []


def test_a_provider_without_extras_works_without_them() -> None:
    program = (
        "import sys; from semblend_core import *; "
        "p = create_provider(Settings(), engine='test'); p.close(); "
        f"sys.exit(bool({OPTIONAL!r} & sys.modules.keys()))"
    ).replace(repr(OPTIONAL), repr(set(OPTIONAL)))
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
