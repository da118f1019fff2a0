"""Debian packages for hosts that have no way out: a small caching HTTP proxy.

It listens on the control side's address, inside the switch's namespace, and fetches from the
machine's own namespace with apt's own downloader, so whatever makes apt work on this machine
(proxies, certificates, credentials, https) works for the hosts too. It serves the package
sources of this machine and nothing else.

Started by `up` as `python -m vllm_cluster.lab.apt_proxy NETNS ADDRESS PORT CACHE URI…`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from vllm_cluster.lab.errors import LabError

_CLONE_NEWNET = 0x40000000
_CHUNK_BYTES = 1 << 20


def unchanging(path: str) -> bool:
    """Whether the archive never changes a file at this path: a package, an index by its hash."""
    return "/pool/" in path or "/by-hash/" in path


class Store:
    """Files by address, on disk, fetched once however many ask at the same time."""

    index_age_s = 300.0
    """How long a file that changes under its name (InRelease) is served without asking again."""

    def __init__(self, folder: Path, uris: list[str]) -> None:
        """`uris` are the sources' own addresses; the hosts ask for them with http."""
        self.folder = folder
        self.uris = [uri.rstrip("/") + "/" for uri in uris]
        self.locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        folder.mkdir(parents=True, exist_ok=True)

    def upstream(self, asked: str) -> str | None:
        """The real address of what a host asked for, None when no source holds it."""
        parts = urlsplit(asked)
        place = parts.netloc + parts.path
        if parts.scheme != "http" or ".." in unquote(parts.path).split("/"):
            return None
        for uri in self.uris:
            source = urlsplit(uri)
            base = source.netloc + source.path
            if place.startswith(base):
                return uri + place.removeprefix(base)
        return None

    def get(self, uri: str) -> Path:
        """The file at an address. Raises FileNotFoundError or OSError as upstream says."""
        name = re.sub(r"[^A-Za-z0-9.+~_-]", "_", unquote(uri).rpartition("/")[2])[-100:]
        file = self.folder / f"{hashlib.sha256(uri.encode()).hexdigest()[:16]}-{name}"
        with self.locks[uri]:
            if not self._fresh(uri, file):
                self._fetch(uri, file)
        return file

    def _fresh(self, uri: str, file: Path) -> bool:
        if not file.exists():
            return False
        # the modification time is the archive's (for If-Modified-Since), the change time ours
        return unchanging(uri) or time.time() - file.stat().st_ctime < self.index_age_s

    def _fetch(self, uri: str, file: Path) -> None:
        new = file.with_name(f"{file.name}.{os.getpid()}.new")
        new.unlink(missing_ok=True)
        argv = ["/usr/lib/apt/apt-helper", "-o", "APT::Sandbox::User=root"]
        done = subprocess.run(
            [*argv, "download-file", uri, str(new)], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            new.rename(file)
            return
        new.unlink(missing_ok=True)
        said = (done.stderr + done.stdout).strip()
        if " 404 " in said:
            raise FileNotFoundError(said)
        if file.exists():
            print(f"{uri}: not reachable, serving what was fetched before\n{said}", flush=True)
            return
        raise OSError(said)


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of absolute addresses, as apt sends them to a proxy."""

    protocol_version = "HTTP/1.1"  # apt keeps the connection
    store: Store

    def do_GET(self) -> None:
        """Answer with the file."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Answer without it."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        uri = self.store.upstream(self.path)
        if uri is None:
            self._fail(HTTPStatus.FORBIDDEN, f"{self.path}: not in the lab's package sources")
            return
        try:
            file = self.store.get(uri)
        except FileNotFoundError as error:
            self._fail(HTTPStatus.NOT_FOUND, str(error))
            return
        except OSError as error:
            self._fail(HTTPStatus.BAD_GATEWAY, str(error))
            return
        with file.open("rb") as data:
            stat = os.fstat(data.fileno())
            if self._unchanged_since(stat.st_mtime):
                self.send_response(HTTPStatus.NOT_MODIFIED)
                self.end_headers()
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(stat.st_size))
            self.send_header("Last-Modified", formatdate(stat.st_mtime, usegmt=True))
            self.end_headers()
            while body and (chunk := data.read(_CHUNK_BYTES)):
                self.wfile.write(chunk)

    def _unchanged_since(self, modified: float) -> bool:
        asked = self.headers.get("If-Modified-Since")
        try:
            return asked is not None and parsedate_to_datetime(asked).timestamp() >= int(modified)
        except ValueError:
            return False

    def _fail(self, status: HTTPStatus, why: str) -> None:
        text = (why + "\n").encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """One line a request, in the lab's log folder."""
        print(f"{self.log_date_time_string()} {self.client_address[0]} {format % args}", flush=True)


class Server(ThreadingHTTPServer):
    """A server on a socket that is open already."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[Handler]) -> None:
        """Take the socket over."""
        super().__init__(("", 0), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening

    def server_bind(self) -> None:
        """Nothing: it is bound."""


def listen_in(netns: str, address: str, port: int) -> socket.socket:
    """A listening TCP socket in another network namespace.

    A socket belongs to the namespace in which it was made, and a namespace is a thread's own:
    a thread goes there, makes it and ends, and the process stays where it is.
    """
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def visit() -> None:
        try:
            with Path(netns).open("rb") as file:
                libc = ctypes.CDLL(None, use_errno=True)  # os.setns is in Python 3.12 and newer
                if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number), netns)  # noqa: TRY301
            made.append(socket.create_server((address, port), backlog=256))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=visit)
    thread.start()
    thread.join()
    if failed:
        raise LabError(f"package proxy: {address}:{port} in {netns}: {failed[0]}")
    return made[0]


def main(argv: list[str]) -> None:
    """Serve until ended."""
    netns, address, port, cache, *uris = argv
    listening = listen_in(netns, address, int(port))
    store = Store(Path(cache), uris)
    server = Server(listening, type("BoundHandler", (Handler,), {"store": store}))
    print(f"serving {' '.join(store.uris)} on {address}:{port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
