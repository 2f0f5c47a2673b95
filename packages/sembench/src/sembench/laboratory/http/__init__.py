"""The laboratory over HTTP: ``uvicorn sembench.laboratory.http:app``. Needs the extra ``laboratory``."""

from __future__ import annotations

import os
from pathlib import Path

from sembench.laboratory.http.application import create_app

__all__ = ["app", "create_app"]

app = create_app(Path(os.environ.get("SEMBENCH_OUTPUT_DIR") or "outputs"))
