"""A headless Chromium, driven by chromedriver in the W3C's protocol: JSON over HTTP, no package."""

import base64
import contextlib
import http.client
import json
import shutil
import socket
import subprocess

import pytest

from tests.waiting import PATIENCE, until

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's name of a reference
KEYS = {"left": "\ue012", "right": "\ue014", "tab": "\ue004", "enter": "\ue007", "end": "\ue010"}

needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="needs chromium and chromedriver on the path",
)


class Browser:
    """One window; `find` and `wait` take CSS selectors."""

    def __init__(self, port: int) -> None:
        self._port = port
        options = {
            "binary": shutil.which("chromium"),
            # In containers there is no sandbox for root, and little shared memory.
            "args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        found = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{found['sessionId']}"

    def _send(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        value = json.loads(connection.getresponse().read())["value"]
        connection.close()
        if isinstance(value, dict) and "error" in value:
            raise RuntimeError(f"{value['error']}: {value['message']}")
        return value

    def post(self, path, **body):
        return self._send("POST", self._session + path, body)

    def quit(self):
        self._send("DELETE", self._session)

    def open(self, address):
        self.post("/url", url=address)

    def run(self, script, *arguments):
        """The value of a function's body."""
        return self.post("/execute/sync", script=script, args=list(arguments))

    def chrome(self, command, **parameters):
        """A command of Chrome's own protocol."""
        return self.post("/goog/cdp/execute", cmd=command, params=parameters)

    def find(self, selector):
        return self.post("/element", using="css selector", value=selector)[ELEMENT]

    def click(self, selector):
        self.post(f"/element/{self.find(selector)}/click")

    def type(self, selector, text, *, clear=True):
        element = self.find(selector)
        if clear:
            self.post(f"/element/{element}/clear")
        self.post(f"/element/{element}/value", text=text)

    def press(self, *keys):
        """Keys to what has the focus."""
        actions = [
            {"type": kind, "value": KEYS.get(key, key)}
            for key in keys
            for kind in ("keyDown", "keyUp")
        ]
        self.post("/actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).innerText", selector)

    def wait(self, script, *arguments):
        """The value of a function's body, once it is true."""
        return until(lambda: self.run(script, *arguments), f"{script} {arguments}")

    def wait_for_text(self, selector, text):
        self.wait(
            "return document.querySelector(arguments[0])?.innerText.includes(arguments[1])",
            selector,
            text,
        )

    def size(self, width, height):
        """Of the window, as a phone has it where it is narrow."""
        self.chrome(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def dark(self, on):
        value = "dark" if on else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.chrome("Emulation.setEmulatedMedia", features=features)

    def messages(self):
        """What the console says since the last call, and no less than warnings."""
        log = self.post("/se/log", type="browser")
        return [x["message"] for x in log if x["level"] in ("WARNING", "SEVERE")]

    def requests(self):
        """Addresses that were asked for since the last call."""
        entries = (
            json.loads(x["message"])["message"] for x in self.post("/se/log", type="performance")
        )
        sent = (x["params"] for x in entries if x["method"] == "Network.requestWillBeSent")
        return [x["request"]["url"] for x in sent]

    def screenshot(self, path):
        content = self._send("GET", f"{self._session}/screenshot")
        path.write_bytes(base64.b64decode(content))


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def chromium():
    """A browser, gone behind the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: _listens(port), "chromedriver starts")
        browser = Browser(port)
        try:
            yield browser
        finally:
            browser.quit()
    finally:
        driver.terminate()
        driver.wait(PATIENCE)
