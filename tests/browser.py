"""Real Chromium, driven over its DevTools pipe:
https://chromedevtools.github.io/devtools-protocol/.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import servers

PATIENCE_S = 60.0
_FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
    ),
    *(
        "--disable-sync",
        "--no-first-run",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
        "--disable-dev-shm-usage",
    ),
)
_PRESSED = {"Tab": 9, "Enter": 13, " ": 32}


class Browser:
    """Browser process; commands and responses end with a zero byte."""

    def __init__(self, to_fd: int, from_fd: int) -> None:
        self._to, self._from, self._rest = to_fd, from_fd, b""
        self._count = 0
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        data = json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        until_s = time.monotonic() + PATIENCE_S
        while (answer := self._read(until_s)).get("id") != self._count:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _read(self, until_s: float) -> Any:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(until_s - time.monotonic(), 0))
            assert ready, f"Chromium did not answer within {PATIENCE_S:.0f} s"
            data = os.read(self._from, 1 << 20)
            assert data, "Chromium has ended"
            self._rest += data
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)


class Page:
    """One tab; `problems` are console errors, `requests` the external resources it loads."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.send("Target.attachToTarget", targetId=self._target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        self._browser.send("Target.closeTarget", targetId=self._target)

    def send(self, method: str, **parameters: Any) -> Any:
        return self._browser.send(method, self._session, **parameters)

    def emulate(
        self,
        width: int = 1280,
        height: int = 900,
        *,
        dark: bool = False,
        scripts: bool = True,
        print_: bool = False,
    ) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", media="print" if print_ else "", features=features)
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, file: Path, ready: str = "document.documentElement.dataset.charts") -> None:
        """Open the page and wait until it has loaded and `ready` is true."""
        self.send("Page.navigate", url=file.as_uri())
        self.wait(
            "document.readyState === 'complete' && location.href !== 'about:blank' && "
            f"Boolean({ready})"
        )

    def wait(self, condition: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not self.value(condition):
            assert time.monotonic() < until_s, f"never true: {condition}; {self.problems}"
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; await a promise."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        parameters = {"key": key, "windowsVirtualKeyCode": _PRESSED[key]} | (
            {"text": "\r"} if key == "Enter" else {}
        )
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, **parameters)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        left = {"button": "left", "buttons": 1, "clickCount": 1}
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **left)

    def move(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, to: Path, *, whole: bool = True) -> None:
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole, format="png")[
            "data"
        ]
        to.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        """Return the page as a PDF on A4."""
        return base64.b64decode(
            self.send(
                "Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True
            )["data"]
        )

    @property
    def problems(self) -> list[str]:
        own_events = [
            event for event in self._browser.events if event.get("sessionId") == self._session
        ]
        return [
            json.dumps(event["params"])
            for event in own_events
            if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")
            or (
                event["method"] == "Runtime.consoleAPICalled"
                and event["params"]["type"] in ("error", "warning")
            )
        ]

    @property
    def requests(self) -> list[str]:
        """Return all requests except the page and inlined data."""
        own_events = [
            event for event in self._browser.events if event.get("sessionId") == self._session
        ]
        urls = [
            event["params"]["request"]["url"]
            for event in own_events
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(("data:", "file:", "about:"))]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a browser with its profile in `folder`."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    flags = [*_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    command = ["bash", "-c", script, "bash", servers.require("chromium", "chromium"), *flags]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            pass_fds=(theirs_in, theirs_out),
            stderr=log,
            stdout=log,
            start_new_session=True,
        )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours_out)
        os.close(ours_in)
