# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A page in headless Chromium, driven over the DevTools protocol through a pipe: no driver, no port, no package."""

import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
SECONDS = 300


def find_browser():
    """Returns the path of Chromium; without Chromium the test is skipped, or fails if CI is set."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs Chromium, which `make browser` installs")
    return found


class Page:
    """An open page.

    Attributes:
        requests (`list[str]`): addresses of all requests of the page, including the page itself.
        problems (`list[str]`): exceptions and errors in the console.
    """

    def __init__(self, write, read):
        self._write = write
        self._read = os.fdopen(read, "rb")
        self._number = 0
        self._session = ""
        self._rest = b""
        self.requests = []
        self.problems = []

    def open(self, place, width=1200, height=900):
        """Opens a file, or an address, and waits until it is loaded."""
        address = place if isinstance(place, str) else place.resolve().as_uri()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.call("Page.navigate", url=address)
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def resize(self, width, height):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def evaluate(self, expression):
        """Returns the value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def click(self, selector):
        """Scrolls to an element and clicks in its middle."""
        place = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self._mouse(kind, *place)

    def click_until(self, selector, expression, clicks=3, seconds=20):
        """Clicks an element until a JavaScript expression is true: again after some seconds without success."""
        for left in range(clicks, 0, -1):
            self.click(selector)
            try:
                self.wait(expression, seconds)
                return
            except AssertionError:
                if left == 1:
                    raise

    def middle(self, selector):
        """Scrolls to an element and returns the place of its middle, once it stands still."""
        found = f"document.querySelector({json.dumps(selector)})"
        before = None
        box = self._box_in_view(found)
        for _ in range(100):
            if box == before:
                break
            time.sleep(0.05)
            before = box
            box = self._box_in_view(found)
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def _box_in_view(self, found):
        self.evaluate(f"{found}.scrollIntoView({{block: 'center'}})")
        return self.evaluate(f"{found}.getBoundingClientRect().toJSON()")

    def drag(self, start, end, steps=8):
        """Presses the mouse at one place and releases it at another."""
        self._mouse("mousePressed", *start)
        for step in range(1, steps + 1):
            self._mouse("mouseMoved", *(a + (b - a) * step / steps for a, b in zip(start, end, strict=True)))
        self._mouse("mouseReleased", *end)

    def _mouse(self, kind, x, y):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def upload(self, selector, *files):
        """Gives files to an `<input type="file">`."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def wait(self, expression, seconds=60):
        """Waits until a JavaScript expression is true, and returns its value."""
        end = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"still not true: {expression}"
            time.sleep(0.02)
        return value

    def key(self, name, times=1):
        """Presses a key, such as Tab, Enter, ArrowRight."""
        code = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}[name]
        text = {"text": "\r"} if name == "Enter" else {}
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                given = text if kind == "keyDown" else {}
                self.call(
                    "Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **given
                )

    def call(self, method, **params):
        """Sends a command of the DevTools protocol and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda found: found.get("id") == self._number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _until(self, condition):
        while True:
            message = self._next()
            self._note(message)
            if condition(message):
                return message

    def _next(self):
        while b"\0" not in self._rest:
            piece = self._read.read1(1 << 16)
            assert piece, "the browser has ended"
            self._rest += piece
        text, self._rest = self._rest.split(b"\0", 1)
        return json.loads(text)

    def _note(self, message):
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])


@contextmanager
def open_browser(profile):
    """Starts a headless browser with an empty profile; it reads commands from descriptor 3 and answers on 4."""
    (browser_in, write_end) = os.pipe()
    (read_end, browser_out) = os.pipe()
    start = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
    command = ["bash", "-c", start, "_", str(browser_in), str(browser_out)]
    # The time limit ends a browser that hangs, and so the wait for its answers.
    command = [*command, "timeout", "--foreground", "--kill-after=5", str(SECONDS)]
    command += [find_browser(), *FLAGS, f"--user-data-dir={profile}"]
    with subprocess.Popen(
        command, pass_fds=(browser_in, browser_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        os.close(browser_in)
        os.close(browser_out)
        page = Page(write_end, read_end)
        try:
            yield page
        finally:
            try:
                page._session = ""
                page.call("Browser.close")
            except (AssertionError, OSError):
                process.kill()
            os.close(write_end)
            page._read.close()
