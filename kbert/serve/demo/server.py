"""Serves the page and its answers, with the HTTP server of `kbert-serve`.

`kbert-serve` is for programs and many requests at once; the demo is for a few people with a page.
No path of a request reaches the file system: the page's files are read when the server starts.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kbert.serve.demo.assets import page_files
from kbert.serve.demo.models import Models
from kbert.serve.demo.settings import DemoOptions
from kbert.serve.http import server as http
from kbert.serve.http.application import Application
from kbert.serve.http.errors import Refused

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_LOCAL = ("localhost", "127.0.0.1", "::1")


def serve(options: DemoOptions, started: Callable[[str], None]) -> None:
    """Serves until SIGTERM or Ctrl-C.

    Args:
        options: settings of the demo: presets, address and limits.
        started: function that is called with the address once requests are accepted.

    Raises:
        FileNotFoundError, ValueError: a preset does not load.
        OSError: the port is taken.
        ImportError: the extra "serve" is not installed.
    """
    http.check_packages("kbert-demo", *http.PACKAGES)
    demo = Demo(options)
    http.run_until_signal(lambda stop: http.run(demo, stop, lambda addresses: started(*addresses)))


class Demo(Application):
    """The application of a demo: the page's files and the models' answers.

    Args:
        options: settings of the demo: presets, address and limits.

    Attributes:
        models: models that answer; set by `load`.
    """

    headers = tuple((name.encode(), value.encode()) for name, value in _HEADERS.items())
    failure = "The demo failed; see what it printed."

    models: Models

    def __init__(self, options: DemoOptions) -> None:
        super().__init__(options)
        self._given = options
        files = page_files("server")
        self._files = {f"/{name}": (name, text.encode()) for name, text in files.items()}
        self._files["/"] = self._files["/index.html"]
        # One thread for each request that may wait, and one that refuses further requests.
        self._threads = ThreadPoolExecutor(options.max_waiting + 1, "demo")

    async def load(self) -> None:
        loop = asyncio.get_running_loop()
        self.models = await loop.run_in_executor(self._threads, Models, self._given)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check(self, request: Any) -> None:
        """Refuses requests with another Host if the demo listens locally, against DNS rebinding.

        A page from elsewhere can point its own host name to 127.0.0.1 and could then read what is
        served there. The Host header still has the page's name.
        """
        if self.options.host not in _LOCAL:
            return
        host = request.headers.get("host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name.strip("[]").lower() not in _LOCAL:
            raise Refused(
                403,
                "The Host of a request must be local, such as localhost. Received: another Host",
            )

    def routes(self) -> list[Any]:
        return [
            self.route("about", "/api/about", "GET", self._about),
            self.route("page", "/{path:path}", "GET", self._page),
            self.route("answer", "/api/{ability}", "POST", self._answer),
            self.route("other", "/{path:path}", "POST", self._other),
        ]

    async def _about(self, request: Any) -> dict[str, Any]:
        return self.models.about()

    async def _page(self, request: Any) -> Any:
        """Returns a file of the page, by its fixed path; `Refused` (404) for other paths."""
        from starlette.responses import Response

        if request.url.path not in self._files:
            raise Refused(404, "The page does not exist. Received: another path")
        name, content = self._files[request.url.path]
        return Response(content, media_type=_TYPES[name.rpartition(".")[2]])

    async def _answer(self, request: Any) -> dict[str, Any]:
        """Returns a model's answer to a JSON request, computed in a thread."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # a form of another site cannot send this type
            raise Refused(
                415,
                f"The content type of a request must be application/json. Received: {kind[:80]}",
            )
        ability, content = request.path_params["ability"], await self.read(request)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self.models.answer, ability, content)
        return await self.wait_for(request, work)

    async def _other(self, request: Any) -> None:
        raise Refused(404, "Requests must be sent to /api/. Received: another path")
