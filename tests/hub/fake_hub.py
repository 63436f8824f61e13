"""A server on loopback that speaks as much of the hub's API as a download of a snapshot needs.

Two of them, in fact: the hub, which answers for large files with a redirect and their checksum, and
the place it redirects to, which serves byte ranges.
"""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_LARGE = (".safetensors", ".model", ".bin")


class FakeHub:
    """Repositories in memory, and a record of every request.

    Attributes:
        requests: "METHOD path" of each, in order.
        refused: repository -> the hub's code for what is wrong with it ("GatedRepo", …).
        corrupt: whether large files arrive with a bit flipped.
        break_after: for each of the next requests for a large file, the bytes that arrive
            before the connection is cut.
    """

    def __init__(self):
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.requests: list[str] = []
        self.refused: dict[str, str] = {}
        self.corrupt = False
        self.break_after: list[int] = []
        self._servers = [_serve(self, _HubHandler), _serve(self, _StorageHandler)]
        self.url, self.storage_url = (f"http://127.0.0.1:{s.server_port}" for s in self._servers)

    def add(self, repository: str, files: dict[str, bytes], revision: str = "main") -> str:
        """Adds a commit, named by what it holds, and lets `revision` point at it."""
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        revisions = self.repositories.setdefault(repository, {})
        revisions[commit] = revisions[revision] = dict(files)
        return commit

    def files_requested(self) -> list[str]:
        """The names of the files whose bytes were asked for."""
        files = (re.match(r"GET /(?:.+/resolve/[^/]+|blob)/(.+)", r) for r in self.requests)
        return sorted(match[1] for match in files if match)

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


def _serve(hub, handler):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.hub = hub
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Quiet: the record is `FakeHub.requests`."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.path = unquote(urlsplit(self.path).path)
        self.server.hub.requests.append(f"{self.command} {self.path}")
        self.answer(self.server.hub)

    def send(self, status, body=b"", sent=None, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:sent])
        if sent is not None:
            self.close_connection = True


class _HubHandler(_Handler):
    def answer(self, hub):
        match = re.fullmatch(r"/api/models/(?P<name>[^/]+/[^/]+)(?P<rest>/.*)?", self.path)
        match = match or re.fullmatch(r"/(?P<name>[^/]+/[^/]+)(?P<rest>/resolve/.*)", self.path)
        if match is None:  # not about a model
            return self.send(404)
        name, rest = match["name"], match["rest"] or "/revision/main"
        if name in hub.refused:
            return self.refuse(hub.refused[name])
        if name not in hub.repositories:
            return self.refuse("RepoNotFound")
        action, _, revision = rest[1:].partition("/")
        path = ""
        if action == "resolve":
            revision, _, path = revision.partition("/")
        if revision not in hub.repositories[name]:
            return self.refuse("RevisionNotFound")
        files = hub.repositories[name][revision]
        commit = next(key for key, value in hub.repositories[name].items() if value == files)
        if action == "resolve":
            return self.resolve(hub, commit, path, files[path])
        entries = [_entry(path, content) for path, content in files.items()]
        if action == "tree":
            return self.send_json(entries)
        siblings = [{"rfilename": path} for path in files]
        return self.send_json({"id": name, "modelId": name, "sha": commit, "siblings": siblings})

    def resolve(self, hub, commit, path, content):
        headers = {"X_Repo_Commit": commit}
        if not path.endswith(_LARGE):
            return self.send(200, content, ETag=f'"{_git_checksum(content)}"', **headers)
        headers |= {
            "X_Linked_ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X_Linked_Size": len(content),
            "Location": f"{hub.storage_url}/blob/{path}?commit={commit}",
        }
        return self.send(302, **headers)

    def send_json(self, content):
        self.send(200, json.dumps(content).encode(), Content_Type="application/json")

    def refuse(self, code):
        if code == "Portal":
            return self.send(200, b"<html>Please log in to this network</html>")
        status = {"RepoNotFound": 401, "GatedRepo": 403, "ServerError": 500}.get(code, 404)
        return self.send(status, X_Error_Code=code)


class _StorageHandler(_Handler):
    def answer(self, hub):
        path = self.path.removeprefix("/blob/")
        revisions = (files for repo in hub.repositories.values() for files in repo.values())
        content = next(files[path] for files in revisions if path in files)
        if hub.corrupt:
            content = content[:-1] + bytes([content[-1] ^ 1])
        start = int((self.headers.get("Range") or "bytes=0-")[len("bytes=") : -1])
        headers = {}
        if start:
            headers["Content_Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            hub.requests.append(f"RANGE {start}")
        rest = content[start:]
        self.send(
            206 if start else 200,
            rest,
            hub.break_after.pop(0) if hub.break_after else None,
            **headers,
        )


def _entry(path, content):
    entry = {"type": "file", "path": path, "size": len(content), "oid": _git_checksum(content)}
    if path.endswith(_LARGE):
        checksum = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": checksum, "size": len(content), "pointerSize": 134}
    return entry


def _git_checksum(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
