"""The status page in a real browser: what is painted, not what is written."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semblend_core.testing import wait_until


class Browser:
    """Headless Chromium over a pair of pipes."""

    FLAGS = (
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"),
        *("--no-proxy-server", "--remote-debugging-pipe"),
    )

    def __init__(self, program: str, folder: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()

        def take_pipes() -> None:
            reading, writing = os.dup2(theirs_in, 250), os.dup2(theirs_out, 251)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self._process = subprocess.Popen(
            [program, *self.FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=take_pipes,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out, self._buffer, self._next = ours_in, ours_out, b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._next:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, url: str, *, width: int, dark: bool) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def ask(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self) -> Any:
        from PIL import Image

        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        image = Image.open(BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
        return np.asarray(image, np.float32) / 255

    def close(self) -> None:
        os.close(self._out)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0, deadline - time.monotonic()))
            received = os.read(self._in, 1 << 20) if ready else b""
            assert received, f"the browser gave no answer (exit code {self._process.poll()})"
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    program = os.environ.get("SEMBENCH_BROWSER") or next((path for path in found if path), None)
    if program is None:
        pytest.skip("no browser: apt-get install --no-install-recommends chromium, or name one in SEMBENCH_BROWSER")
    opened = Browser(program, tmp_path_factory.mktemp("browser") / "profile")
    yield opened
    opened.close()


def shown(browser: Browser, url: str, *, width: int = 1100, dark: bool = False) -> None:
    browser.open(f"{url}/status", width=width, dark=dark)
    wait_until(lambda: browser.ask("Number(document.body.dataset.updated || 0)") > 0, "the page is filled")


def test_the_page_shows_the_fleet_and_why_requests_went_where_they_went(fleet: Any, browser: Browser) -> None:
    served = fleet(2, probe_interval_s=3600)
    document = " ".join(f"word{n}" for n in range(200))
    hostile = "<img src=x onerror=alert(1)>"
    served.chat(document)
    wait_until(lambda: served.status()["donors"] == 1, "it is remembered", every_s=0.01)
    home = served.chat(f"Again: {document}").headers["x-semblend-replica"]
    served.chat("hi", model=hostile, headers={"x-request-id": "<b>bold</b>"})
    served.router.backend.replicas[1].healthy = False
    for width, dark in ((1100, False), (1100, True), (360, False)):
        shown(browser, served.url, width=width, dark=dark)
        text = browser.ask("document.body.innerText")
        for fact in ("semantic_locality", "replica-0", "replica-1", "spans", home, "available", "away", "closed"):
            assert fact in text
        assert "<b>bold</b>" in text
        assert browser.ask("document.querySelectorAll('td b, td img').length") == 0
        assert browser.ask("document.getElementById('trouble').textContent") == ""
        assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
        assert [event for event in browser.events if event.get("method") == "Log.entryAdded"] == []
        shot = browser.screenshot()
        # Painted as it should be: ink on paper, in the colours of the day or of the night.
        assert (shot.mean() < 0.3) if dark else (shot.mean() > 0.8)
        assert shot.std() > 0.05
    rows = browser.ask("[...document.querySelectorAll('#decisions tbody tr')].map((row) => row.innerText.split('\\t'))")
    assert len(rows) == 3
    assert [row[6] for row in rows][1] == "spans"


def test_the_page_says_when_the_router_is_gone(fleet: Any, browser: Browser, serve: Any) -> None:
    served = fleet(1)
    shown(browser, served.url)
    browser.call(
        "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1
    )
    try:
        wait_until(
            lambda: "does not answer" in browser.ask("document.getElementById('trouble').textContent"),
            "the page says that it is old",
        )
    finally:
        browser.call(
            "Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )
    wait_until(lambda: browser.ask("document.getElementById('trouble').textContent") == "", "it is fresh again")
