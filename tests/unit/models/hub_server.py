"""A hub on this machine, which knows what huggingface_hub asks for when it fetches a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "0" * 40


@dataclass
class Hub:
    """`url` serves the folders below `root`, named owner/name; `asked` is what was requested."""

    root: Path
    url: str = ""
    asked: list[str] = field(default_factory=list)


@contextmanager
def serving(root: Path) -> Iterator[Hub]:
    hub = Hub(root)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path).strip("/")
            hub.asked.append(path)
            body, status = _found(root, path), 200
            if body is None:
                body, status = b"not found", 404
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            if status == 404:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _found(root: Path, path: str) -> bytes | None:
    """'owner/name/resolve/main/file', 'api/models/owner/name/revision/main' or '.../tree/...'."""
    if not path.startswith("api/models/"):
        owner, name, _, _, file = [*path.split("/", 4), "", "", "", ""][:5]
        place = root / owner / name / file
        return place.read_bytes() if place.is_file() else None
    owner, name, kind = path.split("/")[2:5]
    files = [entry for entry in sorted((root / owner / name).iterdir()) if entry.is_file()]
    if kind == "tree":
        rows = [
            {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": COMMIT} for f in files
        ]
        return json.dumps(rows).encode()
    siblings = [{"rfilename": entry.name} for entry in files]
    return json.dumps({"id": f"{owner}/{name}", "sha": COMMIT, "siblings": siblings}).encode()
