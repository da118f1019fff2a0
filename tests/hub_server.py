"""A hub that speaks what huggingface_hub asks for when it downloads a model.

On the loopback, or in a lab at an address of its own.

Paths, headers and error codes as huggingface_hub 2.x uses them (hf_api.model_info, list_repo_tree,
file_download.get_hf_file_metadata, utils hf_raise_for_status): large files are answered with a
redirect, X-Linked-Etag (SHA-256) and X-Linked-Size, small ones directly with their git hash.

`python -m tests.hub_server HOST CDN_HOST REPO COMMIT FOLDER [TOKEN]` serves the files of a folder
until its input ends, gated where a token is given; it says its endpoint first.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit

LARGE_BYTES = 10_000


@dataclass
class Repo:
    """Files of one revision. gated: only for `token`."""

    commit: str
    files: dict[str, bytes]
    token: str | None = None
    gated: bool = False


@dataclass
class Hub:
    """repos by name. `damage` may change what is sent for (path, offset, data)."""

    repos: dict[str, Repo] = field(default_factory=dict)
    damage: Callable[[str, int, bytes], bytes] | None = None
    seen: list[tuple[str, str]] = field(default_factory=list)
    sent_bytes: int = 0
    host: str = "127.0.0.1"
    cdn_host: str = "localhost"

    def __enter__(self) -> Hub:
        hub = self

        class Handler(_Handler):
            owner = hub

        # In a lab it has two names, both addresses of one machine.
        bind = self.host if self.host == "127.0.0.1" else "0.0.0.0"
        self._server = ThreadingHTTPServer((bind, 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self._server.server_port}"

    @property
    def cdn(self) -> str:
        """Another host name, as the hub's: the library follows redirects on one name by itself."""
        return self.endpoint.replace(self.host, self.cdn_host)


def blob_id(data: bytes) -> str:
    """git's name for the bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324


class _Handler(BaseHTTPRequestHandler):
    owner: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        self._body = body
        path = unquote(urlsplit(self.path).path).strip("/")
        self.owner.seen.append((self.command, path))
        parts = path.split("/")
        if parts[:2] == ["api", "models"]:
            self._api("/".join(parts[2:4]), parts[4:])
        elif parts[0] == "cdn":
            self._cdn("/".join(parts[1:3]), "/".join(parts[3:]))
        elif len(parts) > 4 and parts[2] == "resolve":
            self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._error(404, "EntryNotFound")

    def _find(self, name: str, revision: str | None) -> Repo | None:
        repo = self.owner.repos.get(name)
        if repo is None:
            self._error(404 if self._token() else 401, "RepoNotFound")
        elif revision not in {None, "main", repo.commit}:
            self._error(404, "RevisionNotFound")
        else:
            return repo
        return None

    def _token(self) -> str | None:
        return self.headers.get("Authorization", "").removeprefix("Bearer ") or None

    def _api(self, name: str, rest: list[str]) -> None:
        revision = rest[1] if len(rest) > 1 else None
        repo = self._find(name, revision)
        if repo is None:
            return
        if rest[:1] == ["tree"]:
            self._json([_tree_entry(path, data) for path, data in repo.files.items()])
            return
        siblings = [_sibling(path, data) for path, data in repo.files.items()]
        self._json(
            {"id": name, "modelId": name, "sha": repo.commit, "private": False,
             "gated": "manual" if repo.gated else False, "tags": [], "downloads": 0,
             "likes": 0, "siblings": siblings}
        )  # fmt: skip

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repo = self._find(name, revision)
        if repo is None:
            return
        if repo.gated and self._token() != repo.token:
            self._error(403 if self._token() else 401, "GatedRepo")
            return
        data = repo.files.get(path)
        if data is None:
            self._error(404, "EntryNotFound")
            return
        headers = {"X-Repo-Commit": repo.commit, "Accept-Ranges": "bytes"}
        if len(data) >= LARGE_BYTES:
            digest = hashlib.sha256(data).hexdigest()
            headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
            self._send(302, b"", headers | {"Location": f"{self.owner.cdn}/cdn/{name}/{path}"})
        else:
            self._content(path, data, headers | {"ETag": f'"{blob_id(data)}"'})

    def _cdn(self, name: str, path: str) -> None:
        data = self.owner.repos[name].files[path]
        digest = hashlib.sha256(data).hexdigest()
        self._content(path, data, {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"})

    def _content(self, path: str, data: bytes, headers: dict[str, str]) -> None:
        wanted = self.headers.get("Range")
        status, start, end = 200, 0, len(data)
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1, len(data)) if last else len(data)
            status = 206
            headers |= {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
        piece = data[start:end]
        if self.owner.damage is not None:
            piece = self.owner.damage(path, start, piece)
        self._send(status, piece, headers)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self._body:
            self.wfile.write(data)
            self.owner.sent_bytes += len(data)


def _sibling(path: str, data: bytes) -> dict[str, object]:
    value: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": blob_id(data)}
    if len(data) >= LARGE_BYTES:
        digest = hashlib.sha256(data).hexdigest()
        value["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 130}
    return value


def _tree_entry(path: str, data: bytes) -> dict[str, object]:
    value: dict[str, object] = {
        "type": "file", "path": path, "size": len(data), "oid": blob_id(data),
    }  # fmt: skip
    if len(data) >= LARGE_BYTES:
        digest = hashlib.sha256(data).hexdigest()
        value["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 130}
    return value


def main() -> None:
    """See the module."""
    host, cdn_host, name, commit, folder = sys.argv[1:6]
    token = sys.argv[6] if len(sys.argv) > 6 else None
    files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
    repo = Repo(commit, files, token=token, gated=token is not None)
    with Hub({name: repo}, host=host, cdn_host=cdn_host) as hub:
        print(hub.endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
