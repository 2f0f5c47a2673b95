import json
from typing import Any

import pytest

from semblend_tools import bench_command
from semblend_tools.errors import ToolError


@pytest.fixture
def ready(workspace: Any, monkeypatch: Any) -> Any:
    workspace.add("semblend-core")
    workspace.pretend_environment("bench")
    monkeypatch.setattr(bench_command, "ensure", lambda environment: None)
    return workspace


def benchmark(workspace: Any, name: str, body: str, package: str = "semblend-core") -> None:
    workspace.write(f"packages/{package}/benchmarks/{name}.py", f'"""Measures {name}.\n\nMore.\n"""\n{body}\n')


def test_arguments_reach_the_benchmark_and_its_last_line_is_json(ready: Any, capfd: Any) -> None:
    benchmark(ready, "lookup", "import json, sys\nprint('warming up')\nprint(json.dumps({'args': sys.argv[1:]}))")
    assert bench_command.bench(ready.clone, "lookup", True, ["--donors", "10"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == '{"args": ["--quick", "--donors", "10"]}'


@pytest.mark.parametrize("last", ["done", "[1, 2]", "{'not': 'json'}", ""])
def test_a_last_line_that_is_no_json_object_fails(ready: Any, last: str) -> None:
    benchmark(ready, "lookup", f"print({last!r})")
    with pytest.raises(ToolError, match=r"the last line that .*lookup.py prints must be one JSON object"):
        bench_command.bench(ready.clone, "lookup", False, [])


def test_the_exit_code_of_a_benchmark_is_passed_on(ready: Any) -> None:
    benchmark(ready, "lookup", "raise SystemExit(7)")
    with pytest.raises(ToolError) as caught:
        bench_command.bench(ready.clone, "lookup", False, [])
    assert caught.value.exit_code == 7


def test_an_unknown_name_lists_the_benchmarks_with_what_they_measure(ready: Any) -> None:
    benchmark(ready, "lookup", "")
    benchmark(ready, "_shared", "")
    with pytest.raises(
        ToolError, match=r"no such benchmark: nope\nBenchmarks:\n  semblend-core/lookup  Measures lookup\.$"
    ):
        bench_command.bench(ready.clone, "nope", False, [])


def test_a_name_that_two_packages_use_must_be_spelled_out(ready: Any) -> None:
    ready.add("semblend-alpha")
    for package in ("semblend-core", "semblend-alpha"):
        benchmark(ready, "lookup", "print('{}')", package)
    with pytest.raises(ToolError, match="say semblend-core/lookup or semblend-alpha/lookup"):
        bench_command.bench(ready.clone, "lookup", False, [])
    assert bench_command.bench(ready.clone, "semblend-alpha/lookup", False, []) == 0


ENGINE = '[tool.hatch.envs.engine]\n[tool.hatch.envs.engine.env-vars]\nFOUND_IN = "the engine\'s"\n'


@pytest.mark.parametrize(
    ("extra", "found"), [("", "the engine's"), ("\n[project.optional-dependencies]\nbench = []", "")]
)
def test_benchmarks_of_an_engine_run_in_its_environment_unless_they_name_what_they_need(
    ready: Any, capfd: Any, extra: str, found: str
) -> None:
    ready.add("semblend-alpha", settings=f"{ENGINE}{extra}")
    ready.pretend_environment("semblend-alpha.engine")
    body = "import json, os\nprint(json.dumps({'found': os.environ.get('FOUND_IN', '')}))"
    benchmark(ready, "served", body, "semblend-alpha")
    assert bench_command.bench(ready.clone, "served", False, []) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1]) == {"found": found}
