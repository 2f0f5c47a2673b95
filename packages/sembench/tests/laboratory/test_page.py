"""The page in a real browser, against a real server."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

_SERVE = """
import socket, sys
import uvicorn
from pathlib import Path
from sembench.laboratory.http import create_app

listening = socket.socket()
listening.bind(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(create_app(Path(sys.argv[1])), log_level="warning")).run(sockets=[listening])
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = [sys.executable, "-c", _SERVE, str(tmp_path_factory.mktemp("served"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = f"http://127.0.0.1:{int(process.stdout.readline())}"
        _wait_for(lambda: _is_up(address))
        yield address
        process.terminate()


def _is_up(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health").status_code == 200
    except httpx.TransportError:
        return False


def _wait_for(holds: Any) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, "it did not come about within two minutes"
        time.sleep(0.05)


def test_an_experiment_is_run_on_the_page_and_seen(browser: Any, address: str) -> None:
    browser.open(f"{address}/")
    _wait_for(lambda: browser.ask("document.body.dataset.ready") == "yes")
    assert browser.ask("document.getElementById('experiment').options.length") == 7
    assert browser.ask("document.getElementById('about').textContent") != ""
    browser.ask("document.getElementById('seeds').value = 1; document.getElementById('requests').value = 20; 0")
    browser.ask("document.getElementById('run').click(); 0")
    _wait_for(lambda: browser.ask("document.getElementById('state').textContent").startswith("Written: "))
    heads = browser.ask("[...document.querySelectorAll('#table tr:first-child th')].map((each) => each.textContent)")
    assert "lru" in heads
    assert heads[-1] == "belady"
    _wait_for(
        lambda: browser.ask("[...document.images].length === 6 && [...document.images].every((each) => each.complete)")
    )
    assert browser.ask("[...document.images].every((each) => each.naturalWidth > 300 && each.alt)")
    assert browser.ask("document.documentElement.scrollWidth <= window.innerWidth")
    errors = [event for event in browser.events if event.get("method") == "Runtime.exceptionThrown"]
    assert errors == []


def test_what_cannot_be_run_is_said_on_the_page(browser: Any, address: str) -> None:
    browser.open(f"{address}/", width=400)
    _wait_for(lambda: browser.ask("document.body.dataset.ready") == "yes")
    # Past the form's own check, as a script could.
    browser.ask("document.getElementById('form').noValidate = true; document.getElementById('seeds').value = 99; 0")
    browser.ask("document.getElementById('run').click(); 0")
    _wait_for(lambda: browser.ask("document.getElementById('problem').textContent") != "")
    assert "body.seeds: " in browser.ask("document.getElementById('problem').textContent")
    assert browser.ask("document.documentElement.scrollWidth <= window.innerWidth")
