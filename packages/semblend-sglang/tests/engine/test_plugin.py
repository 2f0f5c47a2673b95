"""SGLang finds the plugin by its entry point, and everything that the plugin hooks is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from semblend_sglang.compat.hooks import all_hooks

SCRIPT = """
import json
from sglang.srt.plugins import load_plugins
from sglang.srt.mem_cache.registry import registered_radix_cache_backends
load_plugins()
from sglang.srt.plugins.hook_registry import HookRegistry
from semblend_sglang.compat.hooks import why_not_hooked
whole = why_not_hooked()
HookRegistry._patched.discard("sglang.srt.managers.scheduler.Scheduler.abort_request")
print(json.dumps([registered_radix_cache_backends(), sorted(HookRegistry._hooks), whole, why_not_hooked()]))
"""


PATCHED = """
import json, sys
from sglang.srt.server_args import ServerArgs
from semblend_sglang import patch_radix_cache
works = [patch_radix_cache(), patch_radix_cache()]
chosen = []
for options in ({}, {"radix_cache_backend": "other"}, {"disable_radix_cache": True}):
    arguments = ServerArgs(model_path=sys.argv[1], device="cpu", **options)
    getattr(arguments, "resolve_once", lambda: None)()
    chosen.append(arguments.radix_cache_backend)
print(json.dumps([works, chosen]))
"""


def test_the_call_of_earlier_integrations_chooses_the_backend_where_nobody_else_did(shallow_folder: Path) -> None:
    command = [sys.executable, "-c", PATCHED, str(shallow_folder)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout.splitlines()[-1]) == [[True, True], ["semblend", "other", None]]


def test_the_entry_point_registers_the_backend_and_all_hooks_are_applied() -> None:
    """In a process of its own: hooks stay for as long as a process lives."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    backends, hooked, whole, broken = json.loads(run.stdout.splitlines()[-1])
    assert "semblend" in backends
    assert hooked == sorted(all_hooks())
    assert whole is None
    assert "abort_request" in broken
