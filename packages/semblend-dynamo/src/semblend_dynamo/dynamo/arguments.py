"""The command line of ``semblend-dynamo-router``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RouterArguments:
    endpoint: str
    namespace: str
    component: str
    model_path: str
    model_name: str
    block_size: int
    kv_router_config: dict[str, Any]
    context_length: int | None
    tool_call_parser: str | None
    reasoning_parser: str | None


def parse(arguments: Sequence[str] | None = None) -> RouterArguments:
    parser = argparse.ArgumentParser(
        prog="semblend-dynamo-router",
        description="A Dynamo router that sends a request to the worker which already has KV of its tokens. "
        "Discovery and planes come from Dynamo's own DYN_* variables, everything else from SEMBLEND_*.",
    )
    parser.add_argument(
        "--endpoint", required=True, help="the workers' endpoint, such as dyn://workers.backend.generate"
    )
    parser.add_argument("--model-path", required=True, help="folder or name that the workers serve; for its tokenizer")
    parser.add_argument("--model-name", required=True, help="the name that clients ask for")
    parser.add_argument("--block-size", type=int, required=True, help="tokens per KV block of the workers")
    parser.add_argument("--namespace", default="semblend", help="namespace that the frontend reads (default semblend)")
    parser.add_argument("--component", default="router", help="name of this component (default router)")
    parser.add_argument(
        "--kv-router-config", default="{}", help="JSON object for Dynamo's KvRouterConfig, such as router_temperature"
    )
    parser.add_argument("--context-length", type=int, help="the model's, if the frontend shall refuse longer prompts")
    parser.add_argument("--tool-call-parser", help="as for a Dynamo worker")
    parser.add_argument("--reasoning-parser", help="as for a Dynamo worker")
    given = parser.parse_args(arguments)
    endpoint = given.endpoint.removeprefix("dyn://")
    if len(endpoint.split(".")) != 3 or not all(endpoint.split(".")):
        parser.error(f"--endpoint must be namespace.component.endpoint, got {given.endpoint!r}")
    if endpoint.split(".")[0] == given.namespace:
        parser.error(
            f"--namespace must not be the workers' own ({given.namespace!r}): the frontend would read both and pass "
            "this router by"
        )
    if given.block_size < 1:
        parser.error(f"--block-size must be at least 1, got {given.block_size}")
    return RouterArguments(
        endpoint=endpoint,
        namespace=given.namespace,
        component=given.component,
        model_path=given.model_path,
        model_name=given.model_name,
        block_size=given.block_size,
        kv_router_config=_json_object(parser, given.kv_router_config),
        context_length=given.context_length,
        tool_call_parser=given.tool_call_parser,
        reasoning_parser=given.reasoning_parser,
    )


def _json_object(parser: argparse.ArgumentParser, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        parser.error(f"--kv-router-config is not JSON: {error}")
    if not isinstance(value, dict):
        parser.error("--kv-router-config must be a JSON object")
    return value
