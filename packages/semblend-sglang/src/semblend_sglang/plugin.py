"""SGLang's plugin: registers the radix-cache backend ``semblend`` and the hooks it needs. Patches nothing itself."""

from __future__ import annotations

import logging

from semblend_sglang.presence import installed_version, why_refused

logger = logging.getLogger(__name__)

BACKEND = "semblend"


def register() -> None:
    """Called by SGLang in each of its processes, once, before it reads its arguments.

    An SGLang that is not known gets neither backend nor hooks: choosing the backend then fails with SGLang's own
    message, next to the reason logged here.
    """
    refused = why_refused(installed_version())
    if refused is not None:
        logger.error("the radix-cache backend `%s` is not registered: %s", BACKEND, refused)
        return
    from sglang.srt.mem_cache.registry import register_radix_cache_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from semblend_sglang.factory import build_cache
    from semblend_sglang.hooks import HOOKS

    register_radix_cache_backend(BACKEND, build_cache)
    for target, hook in HOOKS.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def why_not_hooked() -> str | None:
    """Why the hooks are not in place, as after a change inside SGLang that no version number told; None: they are.

    Without them relocated KV would be used and rows not computed, so nothing may be reused then.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    from semblend_sglang.hooks import HOOKS

    missing = sorted(set(HOOKS) - HookRegistry._patched)
    return f"SGLang did not apply the hooks on {', '.join(missing)}" if missing else None
