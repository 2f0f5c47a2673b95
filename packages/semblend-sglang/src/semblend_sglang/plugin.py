"""SGLang's plugin: registers the radix-cache backend ``semblend`` and the hooks it needs. Patches nothing itself."""

from __future__ import annotations

import logging

from semblend_sglang.compat.versions import installed_version, why_refused

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

    from semblend_sglang.compat.hooks import all_hooks
    from semblend_sglang.factory import build_cache

    register_radix_cache_backend(BACKEND, build_cache)
    for target, hook in all_hooks().items():
        HookRegistry.register(target, hook, HookType.AROUND)
