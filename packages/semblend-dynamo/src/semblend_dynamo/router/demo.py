"""``python -m semblend_dynamo.router.demo``: two stub replicas, each policy, and a table of where requests went.

The stubs run no model. What they call cached are words of paragraphs that they have seen: the table shows placement,
and is no measurement of reuse.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import httpx
import uvicorn

from semblend_core import Settings
from semblend_dynamo.placement import PlacementSettings
from semblend_dynamo.router.application import create_app
from semblend_dynamo.router.building import build_router
from semblend_dynamo.router.settings import PolicyName, RouterSettings
from semblend_dynamo.stub_replica import Behaviour, Seen, create_stub

_DOCUMENTS = 12
_COLUMNS = ("policy", "requests", "on_the_documents_replica", "words", "cached_words", "cached_share", "busiest_share")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path("outputs/routing"))
    folder: Path = parser.parse_args().output_dir
    rows = [asyncio.run(_try(policy)) for policy in get_args(PolicyName)]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "policies.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    table = _table(rows)
    (folder / "policies.md").write_text(table + "\n")
    print(f"{table}\n\nwritten: {folder / 'policies.csv'}, {folder / 'policies.md'}")


async def _try(policy: PolicyName) -> dict[str, Any]:
    """Every document once, then again behind other instructions, in shuffled order."""
    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(_served(create_stub(Behaviour(), Seen()))) for _ in range(2)]
        settings = RouterSettings(replicas=",".join(urls), policy=policy)
        # Nobody's machine is too slow for a demonstration.
        router = build_router(settings, Settings(lookup_budget_ms=10_000), PlacementSettings())
        url = await stack.enter_async_context(_served(create_app(router)))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60, trust_env=False))
        homes = [await _ask(client, f"Summarize the document.\n\n{_document(n)}") for n in range(_DOCUMENTS)]
        await _remembered(client)
        again = [number for number in range(_DOCUMENTS) for _ in range(3)]
        random.Random(5).shuffle(again)
        draw = random.Random(6)
        answers = []
        for number in again:
            instruction = f"You are reader {draw.randrange(1000)}. Answer in {draw.randrange(2, 90)} words."
            answers.append((number, await _ask(client, f"{instruction}\n\n{_document(number)}\n\nWho signed it?")))
    words = sum(answer["usage"]["prompt_tokens"] for _, (_, answer) in answers)
    cached = sum(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for _, (_, answer) in answers)
    landed = [name for _, (name, _) in answers]
    return {
        "policy": policy,
        "requests": len(answers),
        "on_the_documents_replica": sum(name == homes[number][0] for number, (name, _) in answers),
        "words": words,
        "cached_words": cached,
        "cached_share": f"{cached / words:.1%}",
        "busiest_share": f"{max(landed.count(name) for name in set(landed)) / len(landed):.1%}",
    }


async def _ask(client: httpx.AsyncClient, text: str) -> tuple[str, dict[str, Any]]:
    body = {"model": "stub", "messages": [{"role": "user", "content": text}]}
    answer = await client.post("/v1/chat/completions", json=body, headers={"x-tenant-id": "demo"})
    answer.raise_for_status()
    return answer.headers["x-semblend-replica"], answer.json()


async def _remembered(client: httpx.AsyncClient) -> None:
    """Landings are remembered beside the answers."""
    for _ in range(500):
        if (await client.get("/status.json")).json()["donors"] in (0, None, _DOCUMENTS):
            return
        await asyncio.sleep(0.01)


def _document(number: int) -> str:
    draw = random.Random(number)
    return " ".join(f"{draw.choice(('harbour', 'ledger', 'crane', 'tide'))}{draw.randrange(9999)}" for _ in range(200))


@contextlib.asynccontextmanager
async def _served(app: Any) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    running = asyncio.create_task(server.serve())
    while not server.started:
        if running.done():
            raise SystemExit("a server did not start")
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [list(_COLUMNS), ["---"] * len(_COLUMNS), *([str(row[name]) for name in _COLUMNS] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
