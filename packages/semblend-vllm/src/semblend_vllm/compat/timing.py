"""What the cost gate is told of vLLM's steps, and whose costs they are."""

from __future__ import annotations

from typing import Any

from semblend_core.serving import CostGate, Part, contained
from semblend_vllm.compat.scheduling import ROW_MARK
from semblend_vllm.compat.stored_types import is_fp8
from semblend_vllm.compat.versions import installed_version


@contained
def tell_scheduled(costs: CostGate, output: Any) -> None:
    """A step was scheduled, its rows included. Steps that only decode are told of without their parts, mostly."""
    tokens = output.num_scheduled_tokens
    if not tokens:
        return  # It computes nothing, and its results may be asked for at any time.
    if not costs.wants(output.total_num_scheduled_tokens, len(tokens)):
        costs.step_scheduled(output)
        return
    parts = []
    for new in output.scheduled_new_reqs:
        request_id, mark, _ = new.req_id.rpartition(ROW_MARK)
        parts.append(Part(new.num_computed_tokens, tokens[new.req_id], request_id or new.req_id, bool(mark)))
    known, guessed = output.scheduled_cached_reqs, output.scheduled_spec_decode_tokens
    for request_id, computed, answered in zip(
        known.req_ids, known.num_computed_tokens, known.num_output_tokens, strict=True
    ):
        # One that was preempted computes its prompt again, though it has begun to answer.
        decodes = answered > 0 and tokens[request_id] <= 1 + len(guessed.get(request_id, ()))
        parts.append(Part(computed, tokens[request_id], request_id, decodes=decodes))
    work = output.kv_connector_metadata
    moved: dict[str, int] = {}
    corrected = 0
    if work is not None:
        moved = {load.request_id: sum(span.length for span in load.spans) for load in work.loads}
        corrected = sum(span.length for order in work.corrections for span in order.spans)
    costs.step_scheduled(output, parts, moved, corrected)


def cost_identity(vllm_config: Any) -> dict[str, str]:
    """Whatever the costs of a step depend on."""
    from vllm.platforms import current_platform

    model = vllm_config.model_config
    return {
        "engine": "vllm",
        "version": str(installed_version()),
        "model": str(model.model),
        "config": str(model.hf_config),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "device": str(current_platform.get_device_name() or current_platform.device_type),
        "ranks": str(vllm_config.parallel_config.tensor_parallel_size),
        "graphs": str(not model.enforce_eager),
        **({"kv_cache": str(vllm_config.cache_config.cache_dtype)} if is_fp8(vllm_config) else {}),
    }
