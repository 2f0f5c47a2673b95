"""The program of ``test_vision.py``: a model that takes images too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from archive import DOCUMENT, first, recipient
from configuration import found_in, left_in, told
from programs import run
from ranked_engine import RankedEngine, import_sglang, in_a_fork
from scenes import ONE, a_list

from semblend_core.testing import read_images_without_torchvision, some_image

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def main(model: str, folder: Path) -> dict[str, Any]:
    import_sglang()
    read_images_without_torchvision()
    return in_a_fork(session, model, folder, SEMBLEND_AUDIT_PATH=str(folder / "audit"))


def session(model: str, folder: Path) -> dict[str, Any]:
    engine = RankedEngine(Path(model), folder / "audit", 1)
    (pool,) = engine.on_ranks("pool")
    found = {"pool": pool} | found_in(engine, folder)
    found["images"] = images(engine)
    found |= left_in(engine)
    engine.close()
    return found


def images(engine: RankedEngine) -> dict[str, Any]:
    """A prompt with an image finds nothing, and nobody finds it: behind an image positions differ from places."""
    shown = f"{IMAGE}{recipient(ONE)}"
    engine.ask(first(), salt="images", tokens=1)
    before = engine.counted()
    cold = show(engine, shown, salt="cold, images", wish="off")
    asked = show(engine, shown, salt="images")
    between = engine.counted()
    donor = show(engine, f"{IMAGE}{a_list('keg', 'A list.')} {DOCUMENT}", salt="images")
    after = told(engine.ask(a_list("keg", "Read this with care."), salt="images"))
    return {
        "cold": cold,
        "asked": asked,
        "donor": donor,
        "after": after,
        "before": before,
        "between": between,
        "at_the_end": engine.counted(),
    }


def show(engine: RankedEngine, prompt: str, **how: Any) -> dict[str, Any]:
    return told(engine.ask(prompt, tokens=4, image_data=some_image(), **how))


if __name__ == "__main__":
    run(main)
