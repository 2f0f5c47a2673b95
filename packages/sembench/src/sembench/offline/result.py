"""The result file of an offline run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sembench.offline.replay import OfflineRun
from sembench.results import build_result
from sembench.schema import Aggregate, ManifestItem, Result, RunIdentity, TransformSummary


def offline_result(
    identity: RunIdentity,
    config: dict[str, Any],
    items: Sequence[ManifestItem],
    run: OfflineRun,
    block_size: int,
    *,
    shared_pool: bool,
) -> Result:
    """Every figure that needs no backend; the others stay None."""
    told = {**config, "block_size": block_size, "shared_pool": shared_pool, "donor_offers": dict(run.offers)}
    result = build_result(identity, told, items, run.records, block_size)
    return _without_controls(result) if shared_pool else result


def _without_controls(result: Result) -> Result:
    """Among the donors of all items a control's own document may well be: its figures would accuse the innocent."""
    return result.model_copy(
        update={
            "aggregate": _stripped(result.aggregate),
            "by_transform": {
                name: TransformSummary(aggregate=_stripped(summary.aggregate), paired=summary.paired)
                for name, summary in result.by_transform.items()
            },
        }
    )


def _stripped(aggregate: Aggregate) -> Aggregate:
    controls = [name for name in Aggregate.model_fields if name.startswith("negative_control_")]
    return aggregate.model_copy(update=dict.fromkeys(controls))
