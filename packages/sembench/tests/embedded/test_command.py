"""``sembench run-embedded`` as a user meets it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sembench.cli import main


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["run-embedded", *(str(argument) for argument in arguments)])


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.output


def test_help_shows_an_example_and_every_policy() -> None:
    from sembench.embedded.config import POLICY_NAMES

    shown = invoke("--help").output
    assert "sembench run-embedded --manifest" in shown
    for name in POLICY_NAMES:
        assert name in shown


def test_it_prints_a_line_per_transform_and_where_the_result_is(
    manifest: Path, tiny_model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "new folder" / "result.json"
    result = invoke(
        "-m", manifest, "-o", output, "--model", tiny_model, "--repeats", 1, "--continuation-tokens", 8, "--no-probe"
    )
    assert result.exit_code == 0, result.output
    assert output.exists()
    for word in ("instruction_variant", "no spans", "2 of 14 requests failed", str(output)):
        assert word in result.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--policy", "seam_head", "--tier", "fast"), ("--tier or --policy",)),
        (("--policy", "magic"), ("--policy", "'magic'", "rotate_only")),
        (("--budget", "1.5"), ("--budget",)),
        (("--model", "/no/such/model"), ("--model", "/no/such/model")),
        (("--max-items", "0"), ("--max-items",)),
    ],
)
def test_wrong_options_are_refused_by_name(
    manifest: Path, tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    refused(invoke("-m", manifest, "-o", tmp_path / "r.json", *options), *words)


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    refused(invoke("-m", tmp_path / "none.jsonl", "-o", tmp_path / "r.json"), "none.jsonl")


def test_a_gpu_that_is_not_there_is_said_so(manifest: Path, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    refused(invoke("-m", manifest, "-o", tmp_path / "r.json", "--device", "cuda"), "--device", "no GPU")


def test_a_model_without_a_chat_template_asks_for_template_none(
    manifest: Path, tiny_model: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tiny_model, bare)
    (bare / "chat_template.jinja").unlink()
    refused(invoke("-m", manifest, "-o", tmp_path / "r.json", "--model", bare), "--template none")
    done = invoke(
        *("-m", manifest, "-o", tmp_path / "r.json", "--model", bare, "--template", "none"),
        *("--max-items", 1, "--repeats", 1, "--continuation-tokens", 4),
    )
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("command", ["run-embedded -m m.jsonl -o r.json", "demo"])
def test_without_torch_it_says_what_to_install(command: str, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        f"sys.argv = ['sembench', *{command.split()!r}]\n"
        "from sembench.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert 'pip install "sembench[embedded]"' in done.stderr
    assert "torch==2.13.0" in done.stderr
    assert "Traceback" not in done.stderr
