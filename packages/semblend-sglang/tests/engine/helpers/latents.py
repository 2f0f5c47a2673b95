"""The program of ``test_latents.py``: a model with latent attention (MLA)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configuration import found_in, left_in
from programs import run
from ranked_engine import RankedEngine, import_sglang, in_a_fork


def main(model: str, folder: Path) -> dict[str, Any]:
    import_sglang()
    attend_to_latents()
    return in_a_fork(session, model, folder, SEMBLEND_AUDIT_PATH=str(folder / "audit"))


def attend_to_latents() -> None:
    """Without a prefix SGLang makes keys and values of latents, and attends to those.

    Its attention for a CPU looks for them in the pool, where latents lie, and fails. With a prefix, and in captured
    graphs, SGLang attends to the latents themselves. Here it always does.
    """
    from sglang.srt.models.deepseek_common import attention_backend_handler as handler
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    handler.AttentionBackendRegistry.register("torch_native", lambda *_: AttnForwardMethod.MLA)


def session(model: str, folder: Path) -> dict[str, Any]:
    engine = RankedEngine(Path(model), folder / "audit", 1)
    found = found_in(engine, folder) | left_in(engine)
    engine.close()
    return found


if __name__ == "__main__":
    run(main)
