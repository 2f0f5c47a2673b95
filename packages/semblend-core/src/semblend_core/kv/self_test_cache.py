"""Self-test results on disk, so that an engine's second start does not test again."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from pathlib import Path

from semblend_core.kv.self_test_report import SelfTestIdentity, SelfTestReport

logger = logging.getLogger(__name__)


class SelfTestCache:
    """One JSON file per identity. What cannot be read or written is as good as absent: the test runs again."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @classmethod
    def default(cls) -> SelfTestCache:
        """In the user's cache folder: ``$XDG_CACHE_HOME`` or ``~/.cache``."""
        root = os.environ.get("XDG_CACHE_HOME")
        return cls((Path(root) if root else Path.home() / ".cache") / "semblend" / "self-test")

    def load(self, identity: SelfTestIdentity) -> SelfTestReport | None:
        file = self._file(identity)
        try:
            report = SelfTestReport.from_json(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning("the self-test result in %s is not usable (%s): testing again", file, error)
            return None
        return report if report.identity == identity else None

    def store(self, report: SelfTestReport) -> None:
        """Keep ``report``, unless it is not conclusive: a start that ran out of memory must not decide the next."""
        if report.identity is None or not report.conclusive:
            return
        file = self._file(report.identity)
        partial: str | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=self.folder, prefix=f"{file.stem}.", suffix=".partial")
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(report.as_json(), stream, indent=1)
            os.replace(partial, file)  # Whole or not at all, also when several workers finish at once.
        except OSError as error:
            logger.warning("the self-test result could not be kept in %s (%s)", self.folder, error)
            if partial is not None:
                Path(partial).unlink(missing_ok=True)

    def _file(self, identity: SelfTestIdentity) -> Path:
        return self.folder / f"{identity.digest}.json"
