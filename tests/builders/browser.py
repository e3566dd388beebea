"""Chromium without a screen, driven through the WebDriver protocol that its driver speaks: JSON over HTTP."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
WHY_NOT = "Chromium with its driver is not installed (Debian: apt-get install chromium chromium-driver)"
_PATIENCE_SECONDS, _POLL_SECONDS = 90.0, 0.1
_STARTED = "started successfully on port "


class Browser:
    """One window of a browser."""

    def __init__(self, driver: str, options: dict[str, Any]) -> None:
        self._session = driver
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._send("POST", "", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"{driver}/{made['sessionId']}"

    def open(self, url: str) -> None:
        """Open an address."""
        self._send("POST", "/url", {"url": url})

    def open_in_tab(self, url: str) -> None:
        """Open an address in a new tab, which hides the one before."""
        made = self._send("POST", "/window/new", {"type": "tab"})
        self._send("POST", "/window", {"handle": made["handle"]})
        self.open(url)

    def resize(self, width_px: int, height_px: int) -> None:
        """Change the size of the window."""
        self._send("POST", "/window/rect", {"width": width_px, "height": height_px})

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the value of a script, which `return`s it."""
        return self._send("POST", "/execute/sync", {"script": script, "args": arguments})

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true; one about what a page that loads does not have yet is not."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self.run(f"try {{ return Boolean({condition}) }} catch {{ return false }}"):
            shown = self.run("return document.body?.innerText")
            assert time.monotonic() < deadline, f"{condition}\n{shown}\n{self.complaints()}"
            time.sleep(_POLL_SECONDS)

    def click(self, selector: str) -> None:
        """Click the first visible element, as a person would: it must not be covered."""
        self.wait_for(f"document.querySelector({json.dumps(selector)})?.checkVisibility()")
        element = self._send("POST", "/element", {"using": "css selector", "value": selector})
        self._send("POST", f"/element/{next(iter(element.values()))}/click", {})

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def complaints(self) -> list[str]:
        """Return what the browser complained about since the last call."""
        return [entry["message"] for entry in self._send("POST", "/se/log", {"type": "browser"})]

    def close(self) -> None:
        """Close the window."""
        self._send("DELETE", "", None)

    def _send(self, method: str, path: str, content: Any) -> Any:
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self._session}{path}", body, method=method)
        request.add_header("content-type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE_SECONDS) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {content}: {json.load(error)['value']['message']}") from error


@contextmanager
def browsers(folder: Path) -> Iterator[Any]:
    """Yield a function that opens a browser: `open_browser(width_px, height_px, is_phone=...)`."""
    assert CHROMIUM is not None
    assert DRIVER is not None
    opened: list[Browser] = []
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        line = next(line for line in driver.stdout if _STARTED in line)
        address = f"http://127.0.0.1:{int(line.partition(_STARTED)[2].strip().rstrip('.'))}/session"

        def open_browser(width_px: int, height_px: int, *, is_phone: bool) -> Browser:
            arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            profile = folder / f"profile-{len(opened)}"
            arguments += [f"--window-size={width_px},{height_px}", f"--user-data-dir={profile}"]
            options: dict[str, Any] = {"binary": CHROMIUM, "args": arguments}
            if is_phone:
                metrics = {"width": width_px, "height": height_px, "pixelRatio": 2, "touch": True}
                options["mobileEmulation"] = {"deviceMetrics": metrics}
            opened.append(Browser(address, options))
            return opened[-1]

        try:
            yield open_browser
        finally:
            for browser in opened:
                browser.close()
            driver.terminate()
