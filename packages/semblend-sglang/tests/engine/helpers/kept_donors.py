"""Donors that leave SGLang's tree and are kept, and prompts that ask for them."""

from __future__ import annotations

from typing import Any


def keep(rig: Any, prompt: list[int], rid: str = "donor", **options: Any) -> None:
    """Serve ``prompt``, and take it out of the tree once it is kept."""
    rig.serve(prompt, rid, **options)
    rig.side.donors.kept.flush()
    rig.evict(rig.slots)


def serve_checked(rig: Any, prompt: list[int], rid: str = "asked", **options: Any) -> int:
    """Tokens reused for ``prompt``; each of its slots holds its own token's KV, turned to its own place."""
    request = rig.submit(prompt, rid, **options)
    for _ in range(1000):
        rig.side.donors.kept.flush()
        if rig.step():
            break
    slots = rig.slots_of(request)
    assert rig.tokens_at(slots) == prompt[: len(slots)], "wrong tokens"
    assert rig.key_error(slots, list(range(len(slots)))) < 1e-5
    rig.finish(request)
    rig.check_accounts()
    return int(request.cached_tokens)
