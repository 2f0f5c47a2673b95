"""The program of ``test_vision.py``: a model that takes images too."""

from __future__ import annotations

from typing import Any

from configuration import found_in
from engine_process import counted, new_engine, told
from texts import document, recipient

from semblend_core.testing import read_images_without_torchvision, some_image, write_findings

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def main(model: str) -> dict[str, Any]:
    read_images_without_torchvision()
    engine = new_engine(
        model=model, settings={"store_host_bytes": "512MiB"}, limit_mm_per_prompt={"image": 1, "video": 0}
    )
    found = {"positions_of_three": engine.llm.model_config.uses_mrope} | found_in(engine)
    found["images"] = images(engine)
    engine.check_integrity()
    return found


def images(engine: Any) -> dict[str, Any]:
    """A prompt with an image finds nothing, and nobody finds it: behind an image positions differ from places."""
    shown = f"{IMAGE}{recipient('Barrel')}"
    before = counted(engine)
    cold = ask_showing(engine, shown, salt="cold", reuse="off")
    asked = ask_showing(engine, shown, salt="tenant")
    between = counted(engine)
    donor = ask_showing(engine, f"{IMAGE}A list.\n\n{document('Keg')}\n\nQuestion: which?", salt="tenant")
    engine.settle()
    after = told(engine.ask(recipient("Keg"), salt="tenant"))
    return {
        "cold": cold,
        "asked": asked,
        "donor": donor,
        "after": after,
        "before": before,
        "between": between,
        "at_the_end": counted(engine),
    }


def ask_showing(engine: Any, prompt: str, *, salt: str, reuse: Any = "on") -> dict[str, Any]:
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, max_tokens=4, ignore_eos=True, extra_args={"kv_transfer_params": {"semblend": reuse}}
    )
    request = {"prompt": prompt, "cache_salt": salt, "multi_modal_data": {"image": some_image()}}
    (output,) = engine.llm.generate([request], sampling, use_tqdm=False)
    return {
        "tokens": list(output.outputs[0].token_ids),
        "cached_tokens": output.num_cached_tokens,
        "prompt_tokens": len(output.prompt_token_ids),
    }


if __name__ == "__main__":
    write_findings(main)
