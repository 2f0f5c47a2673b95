"""Stores a donor of the reference engine's through LMCache, and ends: ``lmcache_donor_process.py URL LIST TOKENS``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from semblend_core import Namespace
from semblend_core.kv import DonorStore, StoreOptions
from semblend_core.reference import ReferenceEngine


def namespace() -> Namespace:
    return Namespace(
        model="smollm2",
        revision="default",
        tokenizer="smollm2",
        dtype="float32",
        kv_layout="nhd",
        block_size=1,
        adapter=None,
        salt="tenant",
    )


def main(url: str, listed: str, tokens: str) -> None:
    donor = json.loads(Path(tokens).read_text())
    engine = ReferenceEngine.load()
    kv = engine.capture(engine.prefill(donor).workspace, len(donor))
    options = StoreOptions(host_bytes=0, lmcache_bytes=256 * 2**20, lmcache_url=url, lmcache_path=listed)
    with DonorStore(options, device="cpu") as store:
        store.put(namespace(), "donor", kv, token_ids=donor)
        assert store.flush()
        assert store.contains(namespace(), "donor")


if __name__ == "__main__":
    main(*sys.argv[1:])
