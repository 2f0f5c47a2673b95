"""A provider of somebody else's: it finds what SemBlend's own does, and notes that it was asked."""

from __future__ import annotations

import os
from pathlib import Path

from semblend_core import LookupRequest, LookupResult, SemBlend, Settings, open_audit


class Noting(SemBlend):
    def lookup(self, request: LookupRequest) -> LookupResult:
        with Path(os.environ["THEIR_LOOKUPS"]).open("a") as notes:
            notes.write(f"{request.request_id}\n")
        return super().lookup(request)


def make() -> Noting:
    settings = Settings.from_env()
    return Noting(settings, audit=open_audit(settings, "vllm"))
