"""What an earlier process left on disk, looked for in the background: an engine does not wait for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeAlias

from semblend_core.contract import TokenIds
from semblend_core.kv.store import DonorStore

logger = logging.getLogger(__name__)

LeftDonor: TypeAlias = tuple[str, str, TokenIds, float]
"""Digest of the namespace, donor id, tokens, and when it was captured, in seconds since 1970."""


def recover_in_background(store: DonorStore, found: Callable[[list[LeftDonor]], None]) -> threading.Thread:
    """``found`` is called once, on the thread, with the donors that can be found again, the next victim first."""

    def recover() -> None:
        try:
            left = store.recover()
        except Exception:
            logger.exception("what an earlier process left on disk is not found")
            return
        found(
            [
                (donor.namespace_digest, donor.donor_id, donor.token_ids, donor.born / 1e9)
                for donor in left
                if donor.token_ids is not None
            ]
        )

    thread = threading.Thread(target=recover, name="semblend-recovery", daemon=True)
    thread.start()
    return thread
