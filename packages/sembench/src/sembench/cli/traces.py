"""``sembench collect-trace`` and ``convert-trace``."""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sembench.cli.options import FILE, FiniteRange
from sembench.schema import InputError, naming, write_atomically

if TYPE_CHECKING:
    from sembench.laboratory.collecting import BackEnd, Prompt
    from sembench.laboratory.trace_schema import TraceRequest


@click.command("collect-trace")
@click.option("--mock", is_flag=True, help="No server: times come from a simulated one.")
@click.option("--gateway-url", metavar="URL", help="An OpenAI-compatible server to ask.")
@click.option("--model", default="", help="The model's name as the server lists it.")
@click.option("--requests", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Of the workload.")
@click.option("--workload", default="low_memory_rag_stress", show_default=True, help="Whose prompts are sent.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True)
@click.option("--input", "source", type=FILE, help="Instead: OpenAI bodies, one a line (`messages` or `prompt`).")
@click.option("--keep-text", is_flag=True, help="Keep the prompts' texts. Otherwise hash, type and count only.")
@click.option("--max-output-tokens", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--timeout-s", type=FiniteRange(min=0, min_open=True), default=120.0, show_default=True)
@click.option("--output-dir", type=click.Path(file_okay=False, path_type=Path), default=Path("outputs/live_traces"))
@click.option("--output-name", default="trace", show_default=True, help="Of the file, behind its timestamp.")
def collect_trace(
    mock: bool,
    gateway_url: str | None,
    model: str,
    requests: int,
    workload: str,
    seed: int,
    source: Path | None,
    keep_text: bool,
    max_output_tokens: int,
    timeout_s: float,
    output_dir: Path,
    output_name: str,
) -> None:
    """Send prompts to a server, or to a mock of one, and write a trace that replay-trace reads.

    Prompts are cut into typed blocks. The trace has each block's hash, type and size, and the times that were seen
    from here. It changes nothing about what the server keeps.

    \b
    Examples:
      sembench collect-trace --mock --requests 50 --output-name mock_trace
      sembench collect-trace --gateway-url http://localhost:8001 --model NAME --input requests.jsonl

    SEMBENCH_API_KEY, where set, is sent as bearer token and written nowhere. The file appears when it is complete.
    Exit code 3: the server was not reached or refused.
    """
    from sembench.laboratory.collecting import prompts_of_file, prompts_of_workload
    from sembench.laboratory.trace_facts import name_of
    from sembench.laboratory.workloads import WORKLOADS

    if mock == (gateway_url is not None):
        raise click.UsageError("give --mock or --gateway-url, one of them")
    if gateway_url is not None and not model:
        raise click.UsageError("--gateway-url needs --model")
    if workload not in WORKLOADS:
        raise InputError(f"--workload {workload!r:.80}: use one of {', '.join(WORKLOADS)}")
    name = name_of(Path("trace"), output_name)
    prompts = prompts_of_workload(workload, requests, seed) if source is None else prompts_of_file(source)
    options = _Collection(gateway_url, model, seed, max_output_tokens, timeout_s, not keep_text, name)
    collected = asyncio.run(options.run(prompts))
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    path = output_dir / f"{stamp}_{name}.jsonl"
    _write(path, "jsonl", collected, f"--output-dir {output_dir}")
    click.echo(f"{len(collected):,} requests written: {path}")


class _Collection:
    def __init__(
        self, url: str | None, model: str, seed: int, max_tokens: int, timeout_s: float, redact: bool, name: str
    ) -> None:
        self._url = url
        self._model = model
        self._seed = seed
        self._max_tokens = max_tokens
        self._timeout_s = timeout_s
        self._redact = redact
        self._name = name

    async def run(self, prompts: list[Prompt]) -> list[TraceRequest]:
        from sembench.laboratory.collecting import LiveBackEnd, MockBackEnd

        if self._url is None:
            return await self._collected(prompts, MockBackEnd(self._seed))
        import httpx

        from sembench.live.config import API_KEY_VARIABLE, clean_url
        from sembench.live.openai import OpenAIEndpoint

        url = clean_url("--gateway-url", self._url)
        key = os.environ.get(API_KEY_VARIABLE)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"} if key else {}) as client:
            chat, completion = (
                OpenAIEndpoint(
                    client, url, self._model, tenant="sembench", timeout_s=self._timeout_s, template=template
                )
                for template in ("chat", "completion")
            )
            return await self._collected(prompts, LiveBackEnd(chat, completion, self._max_tokens))

    async def _collected(self, prompts: list[Prompt], back_end: BackEnd) -> list[TraceRequest]:
        from sembench.laboratory.collecting import collect
        from sembench.terminal import ProgressBars

        collected: list[TraceRequest] = []
        with ProgressBars() as bars:
            advance = bars.counter("requests", len(prompts))
            async for request in collect(prompts, back_end, model=self._model, redact=self._redact, name=self._name):
                collected.append(request)
                advance()
        return collected


@click.command("convert-trace")
@click.option(
    "--trace", required=True, type=click.Path(exists=True, path_type=Path), help="A file, or a folder of them."
)
@click.option("--format", "form", default="auto", show_default=True, help="Of the trace; as for replay-trace.")
@click.option("--output", "-o", required=True, type=FILE, help="Where the trace goes; its folder is made.")
@click.option("--to", default="jsonl", show_default=True, help="jsonl, json, csv or mooncake.")
@click.option("--anonymise", is_flag=True, help="Drop texts, hash hashes anew under a secret, number all names.")
@click.option("--redact-text", is_flag=True, help="Drop texts only.")
@click.option("--max-requests", type=click.IntRange(min=1), help="Only the first so many.")
def convert_trace(
    trace: Path, form: str, output: Path, to: str, anonymise: bool, redact_text: bool, max_requests: int | None
) -> None:
    """Turn a trace into another form, and take out what should not leave the house.

    \b
    Reads: jsonl, json, csv (a line per block), mooncake (FAST25 traces), azure (LLM inference dataset),
    kv-cache-tester (coding agents' sessions, a folder). Writes: jsonl, json, csv, mooncake.

    \b
    Examples:
      sembench convert-trace --trace conversation_trace.jsonl --output trace.jsonl
      sembench convert-trace --trace trace.jsonl --anonymise --output to-share.jsonl

    The output appears when it is complete.
    """
    from itertools import islice

    from sembench.laboratory.anonymising import Anonymiser
    from sembench.laboratory.traces import WRITERS, iterate_trace

    if to not in WRITERS:
        raise InputError(f"--to {to!r:.80}: use one of {', '.join(WRITERS)}")
    requests: Iterator[TraceRequest] = islice(iterate_trace(trace, form), max_requests)
    if anonymise:
        # Requests need not stand in the order of time, so the earliest is looked for before the first is written.
        times = (request.timestamp_ms for request in islice(iterate_trace(trace, form), max_requests))
        requests = Anonymiser(min(times, default=0.0)).anonymise(requests)
    elif redact_text:
        requests = (request.redacted() for request in requests)
    count = _write(output, to, requests, f"--output {output}")
    click.echo(f"{count:,} requests written: {output}")


def _write(path: Path, form: str, requests: Iterable[TraceRequest], option: str) -> int:
    from sembench.laboratory.traces import WRITERS

    count = 0

    def counted() -> Iterator[TraceRequest]:
        nonlocal count
        for request in requests:
            count += 1
            yield request
        if not count:
            raise InputError("the trace holds no requests")

    with naming(option):
        write_atomically(path, WRITERS[form](counted()))
    return count
