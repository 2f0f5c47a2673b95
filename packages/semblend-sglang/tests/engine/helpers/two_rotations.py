"""The program of ``test_two_rotations.py``: a model whose windows turn keys faster than its other layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from archive import CASES, recipient
from configuration import found_in, left_in
from programs import run
from ranked_engine import RankedEngine, import_sglang, in_a_fork
from scenes import FOUR, ONE, a_list


def main(model: str, folder: Path) -> dict[str, Any]:
    import_sglang()
    return in_a_fork(session, model, folder, SEMBLEND_AUDIT_PATH=str(folder / "audit"), SEMBLEND_QUALITY_TIER="fast")


def session(model: str, folder: Path) -> dict[str, Any]:
    engine = RankedEngine(Path(model), folder / "audit", 1, disable_hybrid_swa_memory=True)
    (pool,) = engine.on_ranks("pool")
    found = {"pool": pool} | found_in(engine, folder)
    found["says"] = engine.on_ranks("self_test")[0]["says"]
    found["balanced"] = balanced(engine)
    found |= left_in(engine)
    found["wrong"] = {kind: wrong_in(engine, kind) for kind in ("sliding_attention", "full_attention")}
    engine.close()
    return found


def balanced(engine: RankedEngine) -> list[dict[str, Any]]:
    """What was counted before one document is asked for in the tier that corrects, behind it, and behind four."""
    engine.on_ranks("choose_tier", tier="balanced")
    for case in (ONE, FOUR):
        for donor in CASES[case][0]:
            engine.ask(donor, salt=f"balanced, {case}", tokens=1)
    counts = [engine.counted()]
    for case in (ONE, FOUR):
        engine.ask(recipient(case), salt=f"balanced, {case}")
        counts.append(engine.counted())
    engine.on_ranks("choose_tier", tier="fast")
    return counts


def wrong_in(engine: RankedEngine, kind: str) -> dict[str, Any]:
    """What the self-test says of the engine's KV where layers of this kind are thought to turn a little otherwise."""
    engine.on_ranks("mistake", kind=kind)
    for word in ("apple", "pear", "plum"):
        engine.ask(a_list(word, "A list."), salt=kind, tokens=1)
    return dict(engine.on_ranks("self_test")[0])


if __name__ == "__main__":
    run(main)
