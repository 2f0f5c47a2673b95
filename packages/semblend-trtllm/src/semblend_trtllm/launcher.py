"""``semblend-trtllm``: TensorRT-LLM's server with SemBlend switched on."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from semblend_trtllm.__about__ import __version__
from semblend_trtllm.compat import installed_version, why_refused
from semblend_trtllm.preset import PresetError, with_semblend
from semblend_trtllm.settings import TrtllmSettings

SERVER = "trtllm-serve"
_CONFIG_FLAGS = ("--config", "--extra_llm_api_options")
_HELP = """\
Runs `trtllm-serve` with SemBlend as its KV-cache connector. All other arguments are trtllm-serve's own.

What it changes in the configuration:
  kv_connector_config                     SemBlend's connector
  kv_cache_config.enable_block_reuse      true: without it TensorRT-LLM ignores what a connector promises
  kv_cache_config.enable_partial_reuse    false: nothing can be loaded behind a part of a block
  env_overrides                           your SEMBLEND_* variables, which would not reach the engine otherwise

A file that you give with --config is read first, and only completed. What contradicts the above is an error.
SemBlend itself is configured by SEMBLEND_* and SEMBLEND_TRTLLM_* variables: see docs/settings.md.
"""
_EXAMPLES = """\
examples:
  semblend-trtllm Qwen/Qwen2.5-7B-Instruct --port 8000
  semblend-trtllm Qwen/Qwen2.5-7B-Instruct --config extra.yaml --kv-events
  semblend-trtllm --print-config > semblend.yaml && trtllm-serve MODEL --config semblend.yaml

This adapter is contract-tested and was never run on TensorRT-LLM itself: try it before you rely on it.
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="semblend-trtllm",
        usage="semblend-trtllm MODEL [--config FILE] [--kv-events] [trtllm-serve's own arguments]",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(*_CONFIG_FLAGS, dest="config", metavar="FILE", help="trtllm-serve's YAML file, to be completed")
    made.add_argument("--kv-events", action="store_true", help="let routers read KV events (get_kv_cache_events)")
    made.add_argument("--print-config", action="store_true", help="print the completed YAML and start nothing")
    made.add_argument("--version", action="version", version=f"semblend-trtllm {__version__}")
    return made


def completed(config: str | None, *, kv_events: bool) -> str:
    """The YAML of ``config`` with SemBlend switched on. SystemExit, with the reason, where that cannot be."""
    import yaml

    options: object = {}
    if config is not None:
        try:
            options = yaml.safe_load(Path(config).read_text()) or {}
        except (OSError, yaml.YAMLError) as error:
            raise SystemExit(f"semblend-trtllm: --config {config} cannot be read: {error}") from None
    if not isinstance(options, dict):
        raise SystemExit(f"semblend-trtllm: --config {config} holds no mapping of options")
    try:
        made = with_semblend(options, kv_events=kv_events, environment=os.environ)
        return str(yaml.safe_dump(made, sort_keys=False))
    except PresetError as error:
        raise SystemExit(f"semblend-trtllm: {error}") from None


def main(arguments: Sequence[str] | None = None) -> None:
    chosen, theirs = parser().parse_known_args(sys.argv[1:] if arguments is None else arguments)
    text = completed(chosen.config, kv_events=chosen.kv_events)
    if chosen.print_config:
        print(text, end="")
        return
    version = installed_version()
    if version is None:
        raise SystemExit("semblend-trtllm: TensorRT-LLM is not installed here: pip install 'semblend-trtllm[trtllm]'")
    refused = why_refused(version, TrtllmSettings.from_env().force_version)
    if refused is not None:
        raise SystemExit(f"semblend-trtllm: {refused}")
    server = shutil.which(SERVER)
    if server is None:
        raise SystemExit(f"semblend-trtllm: no {SERVER} is in PATH, though TensorRT-LLM {version} is installed")
    with tempfile.NamedTemporaryFile("w", prefix="semblend-trtllm-", suffix=".yaml", delete=False) as file:
        file.write(text)  # The server reads it after this process has become it.
    os.execv(server, [server, *theirs, "--config", file.name])
