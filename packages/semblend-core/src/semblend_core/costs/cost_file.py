"""What an engine learned of its costs, kept for the next process with the same engine, model and device."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semblend_core.costs.step_times import StepTimes

logger = logging.getLogger(__name__)

SCHEMA = "semblend.costs.v2"
NOWHERE = "none"


class CostFile:
    """One file per identity. A file that cannot be read or written costs a warning and the learning, nothing else."""

    def __init__(self, folder: Path, identity: Mapping[str, str]) -> None:
        self._identity = dict(identity)
        digest = hashlib.sha256(json.dumps(self._identity, sort_keys=True).encode()).hexdigest()
        self.path = folder / f"{digest[:32]}.json"
        self._failed = False

    @classmethod
    def of(cls, folder: str, identity: Mapping[str, str]) -> CostFile | None:
        """In the folder that the setting names; None where nothing is kept."""
        if folder == NOWHERE:
            return None
        if folder:
            return cls(Path(folder), identity)
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls(Path(cache) / "semblend" / "costs", identity)

    def load(self) -> StepTimes | None:
        try:
            kept = json.loads(self.path.read_text())
            if kept["schema"] != SCHEMA:
                raise ValueError(f"it is of another release of SemBlend, which keeps {str(kept['schema'])[:80]}")
            if kept["identity"] != self._identity:
                raise ValueError("it was written for something else")
            return StepTimes.from_json(kept["times"])
        except FileNotFoundError:
            return None
        except Exception as error:  # A file is a stranger's: whatever is wrong with it, the engine starts.
            logger.warning("the costs in %s are not used, they are learned anew: %s", self.path, error)
            return None

    def save(self, times: Mapping[str, Any]) -> None:
        """``times``: of ``StepTimes.as_json``. Replaces the file as a whole, so no reader meets half of one."""
        text = json.dumps({"schema": SCHEMA, "identity": self._identity, "times": times})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, suffix=".tmp", delete=False) as fresh:
                fresh.write(text)
            os.replace(fresh.name, self.path)
        except OSError as error:
            if not self._failed:
                logger.warning("what steps cost is not kept for the next start: %s", error)
            self._failed = True
