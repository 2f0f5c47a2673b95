"""SGLang finds the plugin by its entry point, and everything that the plugin hooks is there."""

from __future__ import annotations

import json
import subprocess
import sys

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


def test_the_entry_point_registers_the_backend_and_all_hooks_are_applied() -> None:
    """In a process of its own: hooks stay for as long as a process lives."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    backends, hooked, whole, broken = json.loads(run.stdout.splitlines()[-1])
    assert "semblend" in backends
    assert hooked == sorted(all_hooks())
    assert whole is None
    assert "abort_request" in broken
