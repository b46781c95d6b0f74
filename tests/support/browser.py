"""A real browser, Debian's chromium without a screen, driven by its own DevTools protocol over a WebSocket.

It opens pages, evaluates expressions in them, keeps all their errors and warnings, and takes pictures. It knows nothing
of what the pages are about.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import ClientSession, ClientWebSocketResponse

from tests.support.programs import TIMEOUT_S, Program, wait_until

Result = TypeVar("Result")

CHROMIUM = shutil.which("chromium")
"""The path of chromium; None where it is missing."""

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # it would not start as root, and it opens nothing but our own pages
    "--remote-debugging-port=0",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-proxy-server",
    "--host-resolver-rules=MAP *.example 127.0.0.1",
)

LOUD = {"error", "warning", "assert"}
"""Levels of messages that somebody should look at."""

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""A picture of a long page is one message."""


@dataclass
class Page:
    """One page that is open, and its errors so far."""

    browser: Browser
    session: str
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings in the console, uncaught exceptions, and violations of its content security policy."""

    def go(self, url: str) -> None:
        """Open an address; return when the document is there."""
        self.command("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, or of the promise that it is. Raises `AssertionError` if it throws."""
        reply = self.command("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in reply, f"{expression}: {reply['exceptionDetails']}"
        return reply["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true, and return its value."""
        try:
            return wait_until(f"{expression} in the browser", lambda: self.evaluate(expression))
        except AssertionError as error:
            raise AssertionError(f"{error}; complaints: {self.complaints}; text:\n{self.text()}") from None

    def text(self, selector: str = "body") -> str:
        """Return the visible text of the first element that a selector finds."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait_for_text(self, text: str, selector: str = "body") -> None:
        """Wait until a text can be read within the first element that a selector finds."""
        self.wait(f"(document.querySelector({json.dumps(selector)})?.innerText ?? '').includes({json.dumps(text)})")

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Look at it through a window of this size."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )

    def prefer(self, scheme: str) -> None:
        """Set the colours that the reader of the page prefers: `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, path: Path) -> None:
        """Take a picture of what is seen, as PNG."""
        reply = self.command("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(reply["data"]))

    def close(self) -> None:
        """Close the page."""
        self.command("Page.close")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give a command of the protocol, and return the answer."""
        return self.browser.command(method, self.session, **parameters)

    def receive(self, method: str, reply: dict[str, Any]) -> None:
        """Take in an event of the browser about this page."""
        match method:
            case "Runtime.consoleAPICalled" if reply["type"] in LOUD:
                parts = [str(part.get("value", part.get("description"))) for part in reply["args"]]
                self.complaints.append(f"{reply['type']}: {' '.join(parts)}")
            case "Runtime.exceptionThrown":
                details = reply["exceptionDetails"]
                self.complaints.append(f"exception: {details.get('exception', {}).get('description', details['text'])}")
            case "Log.entryAdded" if reply["entry"]["level"] in LOUD:
                entry = reply["entry"]
                self.complaints.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")


class Browser:
    """One browser, with a profile of its own."""

    def __init__(self, profile: Path) -> None:
        """Start the browser; `profile` is an empty directory."""
        assert CHROMIUM is not None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._program = Program(CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank")
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        port_file = profile / "DevToolsActivePort"
        port, path = wait_until("the browser", lambda: _lines(port_file) if self._program.reading else None)
        self._socket = self._run(self._connect(f"ws://127.0.0.1:{port}{path}"))

    def open(self, url: str, *, width: int = 1_280, height: int = 900, scheme: str = "light") -> Page:
        """Open a page in a window of its own, of this size."""
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.command(f"{domain}.enable")
        page.resize(width, height)
        page.prefer(scheme)
        page.go(url)
        return page

    def command(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Give a command of the protocol, and return the answer. Raises `AssertionError` if it is refused."""
        return self._run(self._command(method, session, parameters))

    def close(self) -> None:
        """End the browser."""
        self._run(self._session.close())
        self._program.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        done: Future[Result] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return done.result(TIMEOUT_S)

    async def _connect(self, url: str) -> ClientWebSocketResponse:
        self._session = ClientSession()
        socket = await self._session.ws_connect(url, max_msg_size=MESSAGE_BYTES_MAX)
        self._listening = self._loop.create_task(self._listen(socket))
        return socket

    async def _listen(self, socket: ClientWebSocketResponse) -> None:
        async for message in socket:
            reply = message.json()
            if "id" in reply:
                answer = self._answers.pop(reply["id"])
                if not answer.done():  # else it was given up
                    answer.set_result(reply)
            elif page := self._pages.get(reply.get("sessionId", "")):
                page.receive(reply["method"], reply["params"])

    async def _command(self, method: str, session: str | None, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = self._loop.create_future()
        order = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(order if session is None else {**order, "sessionId": session})
        reply = await asyncio.wait_for(answer, TIMEOUT_S)
        assert "error" not in reply, f"{method}: {reply['error']}"
        result: dict[str, Any] = reply["result"]
        return result


def _lines(path: Path) -> list[str] | None:
    """Return the two lines of the file with the browser's address, once both are there."""
    lines = path.read_text().splitlines() if path.exists() else []
    return lines if len(lines) == 2 else None
