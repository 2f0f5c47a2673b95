"""The program of ``test_vision.py``: a model that takes images too."""

from __future__ import annotations

from typing import Any

from engine_process import asked, counted, fault, keep_documents, new_engine, run, told
from seen_kv import apart, kv_of
from several import batch, churn
from texts import document, recipient, recipients

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def main(model: str) -> dict[str, Any]:
    do_without_torchvision()
    engine = new_engine(
        model=model, settings={"store_host_bytes": "512MiB"}, limit_mm_per_prompt={"image": 1, "video": 0}
    )
    found: dict[str, Any] = {"positions": engine.llm.model_config.uses_mrope}
    keep_documents(engine)
    found["proved"] = engine.side.self_test.passed
    found["answers"] = {name: asked(engine, prompt) for name, prompt in recipients().items()}
    found["other"] = told(engine.ask(recipient("Barrel"), salt="other"))
    found["moved"] = moved(engine)
    found["images"] = images(engine)
    found["load"] = fault(engine, "scatter", 0)
    found["batch"] = batch(engine)
    found["churn"] = churn(engine)
    found["counted"] = counted(engine)
    engine.check_integrity()
    return found


def do_without_torchvision() -> None:
    """Its builds want a GPU: there is a stand-in for it, and what cuts images does without. No video is shown."""
    from transformers import AutoTokenizer, Qwen2VLProcessor, Qwen2VLVideoProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    def processor(path: str, **_: Any) -> Any:
        images, tokenizer = Qwen2VLImageProcessorPil.from_pretrained(path), AutoTokenizer.from_pretrained(path)
        return Qwen2VLProcessor(images, tokenizer, Qwen2VLVideoProcessor())

    Qwen2VLProcessor.from_pretrained = processor


def moved(engine: Any) -> dict[str, Any]:
    """How far keys are from cold ones, by layer."""
    prompt = recipient("Barrel").replace("few", "very few")
    before = counted(engine)["confirmed"]
    reused = kv_of(engine, prompt, salt="tenant").keys
    confirmed = counted(engine)["confirmed"] - before
    cold = kv_of(engine, prompt, salt="cold", reuse="off").keys
    return {"confirmed": confirmed, "tokens": cold.shape[1], "keys": apart(reused, cold)}


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
    import numpy as np
    from PIL import Image
    from vllm import SamplingParams

    pixels = np.random.default_rng(5).integers(0, 255, (56, 84, 3), dtype=np.uint8)
    sampling = SamplingParams(
        temperature=0, max_tokens=4, ignore_eos=True, extra_args={"kv_transfer_params": {"semblend": reuse}}
    )
    request = {"prompt": prompt, "cache_salt": salt, "multi_modal_data": {"image": Image.fromarray(pixels)}}
    (output,) = engine.llm.generate([request], sampling, use_tqdm=False)
    return {
        "tokens": list(output.outputs[0].token_ids),
        "cached_tokens": output.num_cached_tokens,
        "prompt_tokens": len(output.prompt_token_ids),
    }


if __name__ == "__main__":
    run(main)
