"""What the judge said so far, on disk while it is asked: a judge that breaks off costs no opinion."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from sembench.partial import PartialHeader, PartialRun
from sembench.schema import Result


class Opinion(BaseModel):
    """What the judge said of one item. None: it was not asked, did not reply, or not readably."""

    model_config = ConfigDict(extra="forbid")

    cold: int | None = None
    warm: int | None = None
    pairwise: str | None = None
    asked: int = 0
    unreadable: int = 0
    failures: list[str] = []
    too_long: bool = False

    @property
    def is_unanswered(self) -> bool:
        return self.asked > 0 and len(self.failures) == self.asked


class KeptOpinions:
    """The opinions of one judge on one result's answers. A question that failed is asked again later."""

    def __init__(self, partial: PartialRun) -> None:
        self._partial = partial
        self.known: dict[str, Opinion] = {}
        for line in partial.lines:
            self.known[str(line.value.get("item"))] = line.parse(Opinion, line.value.get("opinion"))

    @classmethod
    def open(cls, path: Path, result: Result, judge: dict[str, Any], *, resume: bool) -> KeptOpinions:
        """``judge``: who is asked, and how. Another judge's opinions, or of other answers, are refused."""
        header = PartialHeader(run=result.run, fixed={"judge": judge, "answers": {"sha256": _digest(result)}})
        return cls((PartialRun.resume if resume and path.exists() else PartialRun.begin)(path, header))

    @property
    def path(self) -> Path:
        return self._partial.path

    def keep(self, item_id: str, opinion: Opinion) -> None:
        if not opinion.failures:
            self._partial.append({"item": item_id, "opinion": opinion.model_dump()})

    def close(self) -> None:
        self._partial.close()

    def remove(self) -> None:
        self._partial.remove()


def _digest(result: Result) -> str:
    answers = [(record.item_id, record.arm, record.output) for record in result.requests]
    return hashlib.sha256(json.dumps(answers).encode()).hexdigest()
