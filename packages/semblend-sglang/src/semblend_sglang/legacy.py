"""``patch_radix_cache()``: the call by which earlier integrations switched themselves on."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from semblend_sglang.compat.versions import installed_version, why_refused
from semblend_sglang.plugin import BACKEND

logger = logging.getLogger(__name__)

FLAG = "--radix-cache-backend"
_MARK = "_semblend_patched"


def patch_radix_cache() -> bool:
    """Switch SemBlend on in every SGLang that this process starts from now on; returns whether it can act here.

    The same as ``--radix-cache-backend semblend`` with each start. No cache of SGLang's is changed: the arguments that
    choose one are. A start that names a backend keeps it, and so does one without a radix cache.
    """
    refused = why_refused(installed_version())
    if refused is not None:
        warnings.warn(f"patch_radix_cache() does nothing: {refused}", RuntimeWarning, stacklevel=2)
        return False
    from sglang.srt.server_args import ServerArgs

    _choose_backend(ServerArgs)
    logger.info("patch_radix_cache(): SGLang starts with %s %s from now on", FLAG, BACKEND)
    return True


def _choose_backend(server_args: Any) -> None:
    # Where SGLang completes its arguments: 0.5.17 when they are made, later releases in a call of its own.
    step = "resolve_once" if hasattr(server_args, "resolve_once") else "__post_init__"
    complete = getattr(server_args, step)
    if getattr(complete, _MARK, False):
        return

    def complete_with_backend(self: Any) -> None:
        if self.radix_cache_backend is None and not self.disable_radix_cache:
            self.radix_cache_backend = BACKEND
        complete(self)

    setattr(complete_with_backend, _MARK, True)
    setattr(server_args, step, complete_with_backend)
