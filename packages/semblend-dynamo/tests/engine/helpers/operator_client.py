"""Asks the routers of a fleet as an operator does, through their endpoint ``control``.

Its own process: Dynamo's runtime is one for a process, and lives as long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet import Fleet


def ask_router(fleet: Fleet, request: dict[str, Any], *, only_one: bool = False) -> list[dict[str, Any]]:
    """The answer of every router, or of one."""
    command = [sys.executable, __file__, json.dumps(request), "1" if only_one else ""]
    asked = subprocess.run(
        command, env={**os.environ, **fleet.environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert asked.returncode == 0, asked.stderr
    answers: list[dict[str, Any]] = json.loads(asked.stdout.splitlines()[-1])
    return answers


def main() -> None:
    import uvloop
    from dynamo.runtime import DistributedRuntime, dynamo_worker

    request, only_one = json.loads(sys.argv[1]), bool(sys.argv[2])

    @dynamo_worker()
    async def ask(runtime: DistributedRuntime) -> None:
        client = await runtime.endpoint("front.router.control").client()
        instances = await client.wait_for_instances()
        answers = []
        for instance in instances[:1] if only_one else instances:
            async for answer in await client.direct(request, instance, annotated=False):
                answers.append(answer)
        print(json.dumps(answers), flush=True)

    uvloop.run(ask())


if __name__ == "__main__":
    main()
