"""Each rule, shown to fail on a bad example and to let the good one pass."""

from typing import Any

import pytest

from semblend_tools.import_boundaries import violations_of


@pytest.fixture
def adapter(workspace: Any) -> Any:
    """A workspace with core, an adapter and another one; returns a function that writes and checks a file."""
    workspace.add(
        "semblend-core",
        ["numpy>=1.26"],
        settings='[tool.semblend]\noptional-import-modules = ["semblend_core.testing"]',
    )
    workspace.add(
        "semblend-alpha",
        ["semblend-core>=0.1.0"],
        settings='[tool.semblend]\noptional-import-modules = ["semblend_alpha.kernels"]',
    )
    workspace.add("semblend-beta", ["semblend-core>=0.1.0"])
    workspace.write("packages/semblend-core/src/semblend_core/planning.py")
    workspace.write("packages/semblend-core/src/semblend_core/testing/__init__.py", "import pytest\n")

    def check(path: str, text: str) -> list[str]:
        workspace.write(f"packages/{path}", text)
        return [violation.message for violation in violations_of(workspace.packages)]

    return check


ALPHA = "semblend-alpha/src/semblend_alpha/adapter.py"


@pytest.mark.parametrize(
    "line",
    [
        "import semblend_core.planning",
        "from semblend_core.planning import plan",
        "from semblend_core import planning",
        "def f():\n    import semblend_core.planning",
    ],
)
def test_core_is_reached_only_through_its_public_modules(adapter: Any, line: str) -> None:
    [message] = adapter(ALPHA, line)
    assert "semblend_core.planning, which is private to semblend-core" in message


def test_the_rule_holds_for_tests_of_an_adapter_but_not_for_those_of_core(adapter: Any) -> None:
    text = "from semblend_core.planning import plan\n"
    assert adapter("semblend-core/tests/test_inside.py", text) == []
    assert len(adapter("semblend-alpha/tests/test_outside.py", text)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "import semblend_core",
        "from semblend_core import Plan",
        "def f():\n    from semblend_core.testing import TokenEngine",
        "def f():\n    from semblend_core.testing.conformance import ProviderConformance",
    ],
)
def test_the_public_surface_may_be_imported(adapter: Any, line: str) -> None:
    assert adapter(ALPHA, line) == []


def test_a_name_that_core_exports_may_be_called_like_a_module(adapter: Any) -> None:
    adapter("semblend-core/src/semblend_core/__init__.py", '__all__ = ["planning"]\n')
    assert adapter(ALPHA, "from semblend_core import planning") == []


@pytest.mark.parametrize("line", ["import semblend_beta", "def f():\n    from semblend_beta import x"])
def test_packages_never_import_each_other(adapter: Any, line: str) -> None:
    [message] = adapter(ALPHA, line)
    assert "packages reach each other only through semblend-core" in message


@pytest.mark.parametrize(
    "line",
    [
        "import torch",
        "try:\n    import torch\nexcept ImportError:\n    torch = None",
        "class A:\n    import torch",
        "if True:\n    from torch import nn",
    ],
)
def test_an_engine_is_not_imported_at_import_time(adapter: Any, line: str) -> None:
    [message] = adapter(ALPHA, line)
    assert "imports torch at import time, but semblend-alpha does not require it" in message


@pytest.mark.parametrize(
    "line",
    [
        "def f():\n    import torch",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        "import typing\nif typing.TYPE_CHECKING:\n    import torch",
    ],
)
def test_an_engine_may_be_imported_late_or_for_types(adapter: Any, line: str) -> None:
    assert adapter(ALPHA, line) == []


def test_required_dependencies_and_the_standard_library_may_be_imported(adapter: Any) -> None:
    assert adapter("semblend-core/src/semblend_core/spans.py", "import json\nimport numpy as np\n") == []


def test_a_module_that_declares_itself_optional_may_import_extras(adapter: Any) -> None:
    assert adapter("semblend-alpha/src/semblend_alpha/kernels/rotate.py", "import torch") == []


@pytest.mark.parametrize(
    "line",
    [
        "from semblend_alpha.kernels import rotate",
        "from . import kernels",
        "from semblend_core.testing import Conformance",
    ],
)
def test_an_optional_module_is_not_imported_at_import_time(adapter: Any, line: str) -> None:
    adapter("semblend-alpha/src/semblend_alpha/kernels/__init__.py", "import torch")
    [message] = adapter(ALPHA, line)
    assert "which needs an extra: import it inside a function" in message


def test_a_cycle_is_found_and_spelled_out(adapter: Any) -> None:
    adapter("semblend-alpha/src/semblend_alpha/a.py", "from semblend_alpha import b")
    adapter("semblend-alpha/src/semblend_alpha/b.py", "from .c import x")
    [message] = adapter("semblend-alpha/src/semblend_alpha/c.py", "import semblend_alpha.a")
    assert message.startswith("import cycle: ")
    assert message.count(" -> ") == 3


LAYERS = """
```layers semblend_alpha
contract
index, kernels
adapter
beside: testing
```
"""


@pytest.fixture
def layered(workspace: Any, adapter: Any) -> Any:
    workspace.write("docs/architecture.md", LAYERS)
    for part in ("contract", "index", "kernels/rotate", "testing"):
        workspace.write(f"packages/semblend-alpha/src/semblend_alpha/{part}.py", "")
    workspace.write("packages/semblend-alpha/src/semblend_alpha/kernels/__init__.py", "")
    return lambda module, text: adapter(f"semblend-alpha/src/semblend_alpha/{module}.py", text)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("contract", "from semblend_alpha import index"),
        ("index", "def late():\n    from semblend_alpha.kernels import rotate"),
        ("contract", "from semblend_alpha import testing"),
    ],
)
def test_an_import_against_the_layers_is_refused(layered: Any, module: str, text: str) -> None:
    [message] = layered(module, text)
    assert "against the layers of docs/architecture.md" in message


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("index", "from semblend_alpha import contract"),
        ("adapter", "from semblend_alpha import contract, index"),
        ("testing", "from semblend_alpha import adapter, contract"),
        ("contract", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from semblend_alpha import index"),
    ],
)
def test_an_import_along_the_layers_is_none_of_its_business(layered: Any, module: str, text: str) -> None:
    layered("adapter", "")
    assert layered(module, text) == []


def test_a_module_that_the_page_does_not_name_is_refused_if_it_imports_others(layered: Any) -> None:
    assert layered("names", "import re") == []
    [message] = layered("forgotten", "from semblend_alpha import index")
    assert "semblend_alpha.forgotten is in no layer" in message


def test_a_circle_through_a_function_is_a_circle(adapter: Any) -> None:
    adapter("semblend-alpha/src/semblend_alpha/one.py", "from semblend_alpha import two\n")
    [message] = adapter("semblend-alpha/src/semblend_alpha/two.py", "def late():\n    from semblend_alpha import one\n")
    assert "import cycle" in message
