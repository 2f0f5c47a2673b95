"""A browser to look at the page with, and a small client to drive it."""

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

import pytest


class Browser:
    """Headless Chromium, spoken to over a pair of pipes: no port to find, and nothing else can listen."""

    FLAGS = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
    )

    def __init__(self, program: str, folder: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()

        def take_pipes() -> None:
            # The browser reads commands from descriptor 3 and answers on 4. By way of high numbers, since 3 and 4 may
            # be the pipes themselves.
            reading, writing = os.dup2(theirs_in, 250), os.dup2(theirs_out, 251)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        command = [program, *self.FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._log = (folder.parent / "browser.log").open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            close_fds=False,
            preexec_fn=take_pipes,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._buffer, self._next, self.events = b"", 0, list[dict[str, Any]]()
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    _session: str | None = None

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

    def open(
        self, page: Path | str, *, width: int = 1100, height: int = 900, dark: bool = False, media: str = ""
    ) -> None:
        """Show a file or a URL as a screen of that size would; ``events`` then holds what happened meanwhile."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, **clip: float) -> Any:
        """The painted pixels, rows of red, green, blue and alpha in 0 to 1; ``clip``: x, y, width, height."""
        import numpy as np
        from PIL import Image

        return np.asarray(Image.open(BytesIO(self.screenshot_png(**clip))).convert("RGBA"), np.float32) / 255

    def screenshot_png(self, **clip: float) -> bytes:
        area = {"clip": {**clip, "scale": 1}} if clip else {}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, **area)
        return base64.b64decode(shot["data"])

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)["data"])

    def close(self) -> None:
        os.close(self._out)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        self._log.close()

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0, deadline - time.monotonic()))
            received = os.read(self._in, 1 << 20) if ready else b""
            assert received, f"the browser gave no answer (exit code {self._process.poll()}; see {self._log.name})"
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


def find_browser() -> str | None:
    named = os.environ.get("SEMBENCH_BROWSER")
    if named:
        return named
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no browser: apt-get install --no-install-recommends chromium, or name one in SEMBENCH_BROWSER")
    opened = Browser(program, tmp_path_factory.mktemp("browser") / "profile")
    yield opened
    opened.close()
