"""Cold against cold: the same prompts served cold several times, and how far the servings differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sembench.identity import identify, now
from sembench.live.arms import ItemReplay
from sembench.live.config import LiveConfig, open_client
from sembench.live.isolation import Isolation
from sembench.live.noise_floor import ColdServing, NoiseFloor, build_noise_floor
from sembench.live.preflight import REFUSED
from sembench.live.replay import FAILURES_IN_A_ROW, check_servers, servers_of, warm_up_servers
from sembench.schema import InputError, ManifestItem, RequestRecord


async def calibrate(
    config: LiveConfig,
    manifest: Path,
    items: Sequence[ManifestItem],
    repeats: int,
    on_record: Callable[[RequestRecord], None],
    api_key: str | None,
) -> NoiseFloor:
    """An item's servings follow each other, as its arms do in a replay: slow drift of the server stays out of both."""
    servings: dict[str, list[ColdServing]] = {item.item_id: [] for item in items}
    async with open_client(api_key, 1) as client:
        servers = servers_of(config, client)
        found = await check_servers(config, servers)
        isolation = Isolation(client, found.able, concurrency=1)
        server = {**found.engine, "cached_tokens": found.able.cached_tokens, "isolation": isolation.how}
        run = identify("noise-floor", manifest, len(items), seed=config.seed, engine=server, device="remote")
        await warm_up_servers(config, servers, items)
        failed_in_a_row = 0
        for item in items:
            for _ in range(repeats):
                record = await ItemReplay(item, config, servers, isolation, found.able).serve("cold")
                on_record(record)
                servings[item.item_id].append(_serving(record))
                failed_in_a_row = failed_in_a_row + 1 if record.status == "error" else 0
                if failed_in_a_row == FAILURES_IN_A_ROW:
                    raise InputError(
                        f"{failed_in_a_row} requests failed in a row, the last with: {record.error}", REFUSED
                    )
    finished = run.model_copy(update={"finished_at": now(), "serve_command": config.serve_command})
    return build_noise_floor(finished, config.model_dump(mode="json"), servings, repeats)


def _serving(record: RequestRecord) -> ColdServing:
    problem = None
    if record.status == "error":
        problem = "request failed"
    elif not record.proved_cold:
        problem = "cold was warm" if record.proved_cold is False else "coldness not provable"
    return ColdServing(record.output or "", record.ttft_ms, record.quality, problem)
