"""The page and its answers over HTTP, by the standard library: a demo needs no extra.

`kbert-serve` is for programs and for many at once; this is for a few people in front of a page.
No path of a request reaches a file system: the page's files are read when the server starts.
"""

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from absl import logging

from kbert.demo.assets import page_files
from kbert.demo.models import Models
from kbert.demo.settings import DemoOptions
from kbert.service.errors import Refused

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_READ_ON = 8  # so many times the largest body is read to its end, that the client sees why it fails
_LOCAL = ("localhost", "127.0.0.1", "::1")


def serve(options: DemoOptions, started: Callable[[str], None]) -> None:
    """Serves until Ctrl-C.

    Args:
        options: what, where, and within which limits.
        started: is called with the address once requests are taken.

    Raises:
        FileNotFoundError, ValueError: a preset does not load.
        OSError: the port is taken.
    """
    with DemoServer(options) as server:
        started(server.address)
        server.serve_forever()


class DemoServer(ThreadingHTTPServer):
    """The server; the models are loaded when it is made.

    Args:
        options: what, where, and within which limits.

    Attributes:
        address: where a browser finds it.
    """

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, options: DemoOptions) -> None:
        self.options = options
        self.address_family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        try:  # before the models, which take a while
            super().__init__((options.host, options.port), _Handler)
        except (OSError, OverflowError) as error:
            raise OSError(
                f"The port cannot be opened ({error}). Received: {options.host}:{options.port}"
            ) from error
        try:
            self.models = Models(options)
        except BaseException:
            self.server_close()
            raise
        files = page_files("server")
        self.files = {f"/{name}": (name, text.encode()) for name, text in files.items()}
        self.files["/"] = self.files["/index.html"]
        self._connections = threading.BoundedSemaphore(options.max_connections)
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.address = f"http://{host}:{self.server_address[1]}"

    def server_bind(self) -> None:
        """As the base, without asking a name server for this machine's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.options.host, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, where there are not too many."""
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is no news."""
        logging.debug("A connection ended", exc_info=True)

    def takes_host(self, header: str) -> bool:
        """Whether a request is meant for this server.

        A page from elsewhere can have its own name lead to 127.0.0.1, and would then read what is
        served there; the Host header still has that name.
        """
        if self.options.host not in _LOCAL:
            return True
        host = header.rpartition(":")[0] if not header.endswith("]") and ":" in header else header
        return host.strip("[]").lower() in _LOCAL


class _Handler(BaseHTTPRequestHandler):
    server: DemoServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "kbert-demo", ""
    disable_nagle_algorithm = True  # else a body waits 40 ms for its head to be acknowledged
    error_content_type = "application/json"
    error_message_format = '{"error": "%(code)d %(message)s"}'

    def setup(self) -> None:
        self.request.settimeout(self.server.options.timeout_seconds)
        super().setup()

    def log_message(self, format: str, *args: Any) -> None:
        logging.debug(format, *args)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """For what the base class refuses; of a message of its own nothing is repeated."""
        super().send_error(code, None, explain)

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    @property
    def _size(self) -> int | None:
        """Bytes of the body; None where the request does not say."""
        given = self.headers.get("Content-Length", "")
        is_known = given.isascii() and given.isdecimal() and len(given) < 19
        return int(given) if is_known and "Transfer-Encoding" not in self.headers else None

    def _answer(self, find: Callable[[], tuple[str, bytes]]) -> None:
        headers, status = {}, 200
        self._unread = self._size or 0
        try:
            if not self.server.takes_host(self.headers.get("Host", "")):
                raise Refused(403, "The demo answers at localhost. Received: another Host")
            kind, body = find()
        except Refused as error:
            status, kind = error.status, "application/json"
            body = _json({"error": str(error)})
            self._read(min(self._unread, _READ_ON * self.server.options.max_body_bytes))
            if error.retry_after is not None:
                headers["Retry-After"] = str(error.retry_after)
        except (TimeoutError, ConnectionError):
            raise
        except Exception:
            logging.exception("A request failed")
            status, kind = 500, "application/json"
            body = _json({"error": "The demo failed; what it printed says how."})
        if status != 200 or self._unread:  # what comes next is not another request
            self.close_connection = True
            headers["Connection"] = "close"
        self.send_response(status)
        sizes = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in {**_HEADERS, **sizes, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _get(self) -> tuple[str, bytes]:
        path = self.path.partition("?")[0]
        if path == "/api/about":
            return "application/json", _json(self.server.models.about())
        if path not in self.server.files:
            raise Refused(404, "There is no such page. Received: another path")
        name, content = self.server.files[path]
        return _TYPES[name.rpartition(".")[2]], content

    def _post(self) -> tuple[str, bytes]:
        kind = self.headers.get_content_type()
        if kind != "application/json":  # a form of another site cannot say this
            raise Refused(415, f"A request is application/json. Received: {kind[:80]}")
        request = _parse(self._read_body())
        start, _, ability = self.path.rpartition("/")
        if start != "/api":
            raise Refused(404, "Requests go to /api/. Received: another path")
        return "application/json", _json(self.server.models.answer(ability, request))

    def _read_body(self) -> bytes:
        most, size = self.server.options.max_body_bytes, self._size
        if size is None:
            raise Refused(411, "A request says its Content-Length. Received: none")
        if size > most:
            raise Refused(413, f"A request has {most} bytes at most. Received: {size}")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        """So many bytes of the body, in the time that a request may take."""
        ends = time.monotonic() + self.server.options.timeout_seconds
        body = bytearray()
        while len(body) < size:
            part = self.rfile.read1(size - len(body))
            if not part or time.monotonic() > ends:
                raise ConnectionError("The client has left, or sends too slowly")
            body += part
        self._unread -= size
        return bytes(body)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "A request is JSON, in UTF-8. Received: something else") from None
    if not isinstance(value, dict):
        raise Refused(400, "A request is a JSON object. Received: another value")
    return value


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
